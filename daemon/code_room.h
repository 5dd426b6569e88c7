// What the store's limits leave for the code of functions, which lies in the store's folder and which the
// store itself knows nothing of.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "functions/code_ledger.h"
#include "functions/function_catalog.h"
#include "functions/layer_store.h"

namespace rekindle::daemon {

// Of one deployment. Thread-compatible.
class CodeRoom {
 public:
  // Reads the limits, and what is used of them: by images, by all code (as the ledger has it whenever it is
  // asked for) but that of the present revision of `function`, whose place the new one takes, and by layers
  // (LayerStore::Sizes), each once, but for those that `function` alone has. An empty `function`: layers of
  // an image are wanted.
  static absl::StatusOr<CodeRoom> Of(const store::Store& store, const std::string& path,
                                     const std::vector<functions::FunctionRecord>& functions,
                                     std::shared_ptr<const functions::CodeLedger> ledger,
                                     const std::map<functions::LayerKey, uint64_t>& layers,
                                     const std::string& function, uid_t owner);

  // Whether so much code, which is in the ledger already, may be had, or more than that (`all` false: it is
  // still being copied).
  // ResourceExhausted: the quota of the owner, the limit of the store, or the high-water mark of its file
  // system is in the way, and what to do. Needs no rights over files.
  absl::Status Check(uint64_t code_bytes, bool all) const { return Check(code_bytes, code_bytes, all); }
  // The same for all of a revision whose layers are there already.
  absl::Status CheckRevision(const functions::FunctionRecord& staged) const;

 private:
  CodeRoom() = default;

  struct Use {
    uint64_t limit = 0;  // 0: none
    uint64_t images = 0, layers = 0;
  };
  // Of code, with layers, beside so much of it.
  uint64_t OtherCode(const Use& use, std::optional<uid_t> owner, uint64_t in_ledger) const;
  static bool Exceeds(const Use& use, uint64_t code, uint64_t code_bytes);
  absl::Status Check(uint64_t code_bytes, uint64_t in_ledger, bool all) const;

  std::string path_, function_;
  uid_t owner_ = 0;
  std::shared_ptr<const functions::CodeLedger> ledger_;
  uint64_t replaced_bytes_ = 0;  // which are the owner's
  std::set<functions::LayerKey> counted_;
  Use of_owner_, of_store_;
  uint32_t high_water_percent_ = 0;
  UniqueFd folder_;
};

}  // namespace rekindle::daemon
