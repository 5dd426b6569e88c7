// What a pager that starts anew should load again: which images were cloned lately, and which of their frames
// were used often. A file in the store's folder, so that a reboot does not take it; without it nothing is
// lost but time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

struct HotList {
  static constexpr size_t kMostImages = 32;
  static constexpr size_t kMostFrames = size_t{64} << 10;

  std::vector<std::string> images;     // digests, the last used first
  std::vector<store::FrameId> frames;  // the most valuable first

  std::string Encode() const;
  // DataLoss: the bytes are none. FailedPrecondition: of a newer Rekindle.
  static absl::StatusOr<HotList> Decode(absl::string_view bytes);
};

// `store`: its folder. NotFound: there is none. Also removes what a writer left that was killed.
absl::StatusOr<HotList> ReadHotList(const std::string& store);
bool HasHotList(const std::string& store);
absl::Status WriteHotList(const std::string& store, const HotList& list);  // all or nothing

}  // namespace rekindle::restore
