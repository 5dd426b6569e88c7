// Images on top of images: a copy is made, goes on to its next ready point, and is captured there. The pages
// that it did not touch are those of the image it was made of, at the same addresses.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/capture.h"
#include "daemon/cancellation.h"
#include "daemon/node.h"
#include "restore/clone.h"

namespace rekindle::daemon {

struct CapturedCopy {
  store::ImageInfo image;
  uint64_t resident_bytes = 0;  // of the copy
  double seconds = 0;           // until it was at its ready point
};

// Of the copy's way to its ready point: what it runs there may be anybody's.
struct ReadyWait {
  absl::Duration longest;
  const Cancellation* cancel = nullptr;  // ends the capture too. Null: only the daemon's end does
  // Whether an image may be taken of it there; `has_after_restore`: it has callbacks for its copies, or an
  // older hook that does not say. Its error is the result. Null: it may.
  std::function<absl::Status(pid_t root, bool has_after_restore)> check = nullptr;
};

// `copy` says of what and with which environment, `capture` gives reference, parent, owner and labels; the
// rest is filled in. `label`, if not null, can add labels when it is known what the copy has become. The copy
// is gone afterwards. FailedPrecondition: it ended before its next ready point, or was not there in time;
// Unavailable: it was killed on its way, and not for its limits; DataLoss: the image that it is a copy of is
// damaged; Cancelled. `what` begins errors.
absl::StatusOr<CapturedCopy> CaptureNextReadyPoint(
    Node& node, store::Store& store, restore::CloneOptions copy, ckpt::CaptureOptions capture,
    const ReadyWait& wait, const std::string& what,
    const std::function<void(const CapturedCopy&, std::map<std::string, std::string>& labels)>& label =
        nullptr);

}  // namespace rekindle::daemon
