// Who supervises a job: one process, for as long as it has the lock on STORE/supervised/.NAME.hold. It ends
// with the process, however that ends: then the job may be taken over.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/held_lock.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

// Movable; thread-compatible.
class SupervisedHold {
 public:
  // AlreadyExists: another process has it; the message names that. `directory` is that of the records.
  static absl::StatusOr<SupervisedHold> Take(const std::string& directory, absl::string_view name);
  // Has anybody got it? AlreadyExists as above; an error that tells nothing about it is none.
  static absl::Status CheckIsFree(const std::string& directory, absl::string_view name);

  // Gives it up, with the file: the record goes too.
  void Remove();

 private:
  SupervisedHold(std::string path, UniqueFd file) : path_(std::move(path)), lock_(std::move(file)) {}

  std::string path_;
  HeldLock lock_;
};

}  // namespace rekindle::daemon
