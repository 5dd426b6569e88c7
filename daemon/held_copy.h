// Images on top of images: a copy is made, goes on to its next ready point, and is captured there. The pages
// that it did not touch are those of the image it was made of, at the same addresses.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/capture.h"
#include "daemon/node.h"
#include "restore/clone.h"

namespace rekindle::daemon {

struct CapturedCopy {
  store::ImageInfo image;
  uint64_t resident_bytes = 0;  // of the copy
  double seconds = 0;           // until it was at its ready point
};

// `copy` says of what and with which environment, `capture` gives reference, parent, owner and labels; the
// rest is filled in. `label`, if not null, can add labels when it is known what the copy has become. The copy
// is gone afterwards. FailedPrecondition: it ended before its next ready point. `what` begins errors.
absl::StatusOr<CapturedCopy> CaptureNextReadyPoint(
    Node& node, store::Store& store, const restore::CloneOptions& copy, ckpt::CaptureOptions capture,
    const std::string& what,
    const std::function<void(const CapturedCopy&, std::map<std::string, std::string>& labels)>& label =
        nullptr);

}  // namespace rekindle::daemon
