// What the store's limits leave for the code of functions, which lies in the store's folder and which the
// store itself knows nothing of.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "functions/function_catalog.h"
#include "functions/layer_store.h"

namespace rekindle::daemon {

// Of one deployment. Thread-compatible.
class CodeRoom {
 public:
  // Reads the limits, and what is used of them: by images, by the code of all functions but `function`
  // itself, whose present code the new one takes the place of, and by layers (LayerStore::Sizes), each once,
  // but for those that `function` alone has. An empty `function`: layers of an image are wanted.
  static absl::StatusOr<CodeRoom> Of(const store::Store& store, const std::string& path,
                                     const std::vector<functions::FunctionRecord>& functions,
                                     const std::map<functions::LayerKey, uint64_t>& layers,
                                     const std::string& function, uid_t owner);

  // Whether so much code may be had, or more than that (`all` false: it is still being copied).
  // ResourceExhausted: the quota of the owner, the limit of the store, or the high-water mark of its file
  // system is in the way, and what to do. Needs no rights over files.
  absl::Status Check(uint64_t code_bytes, bool all) const;
  // The same for all of a revision whose layers are there already.
  absl::Status CheckRevision(const functions::FunctionRecord& staged) const;

 private:
  CodeRoom() = default;

  struct Use {
    uint64_t limit = 0;  // 0: none
    uint64_t images = 0, code = 0;
  };
  static bool Exceeds(const Use& use, uint64_t code_bytes);

  std::string path_, function_;
  uid_t owner_ = 0;
  std::set<functions::LayerKey> counted_;
  Use of_owner_, of_store_;
  uint32_t high_water_percent_ = 0;
  UniqueFd folder_;
};

}  // namespace rekindle::daemon
