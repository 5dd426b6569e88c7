// A coordinator's decisions to commit: one JSON file for each group, in STORE/groups. What is not there was
// never decided, or aborted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "rekindle/v1/group.pb.h"

namespace rekindle::daemon {

// Thread-safe. Several processes may have a store's records open: they take turns at changing them.
class GroupRecords {
 public:
  explicit GroupRecords(std::string directory) : directory_(std::move(directory)) {}

  // Until EndWork, or the end of this process, every process knows that a group is being captured by somebody
  // who lives: nobody takes it for one that was given up. AlreadyExists: one of this name is being captured.
  absl::StatusOr<UniqueFd> BeginWork(const std::string& id, const std::string& reference)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void EndWork(const std::string& id, UniqueFd work);
  // By another process; an error: who knows.
  absl::StatusOr<bool> IsInWork(const std::string& id) const;
  // What processes that died in the middle have left of it.
  void ForgetDeadWork();

  // Durable when it returns OK. DataLoss: that is not known. After any other status there is certainly none.
  // AlreadyExists: another than `replaces` has its name; empty: it replaces none.
  absl::Status Decide(const v1::Group& group, absl::string_view replaces = "") ABSL_LOCKS_EXCLUDED(mutex_);

  // Changes a record durably. NotFound: there is none.
  template <typename Change>
  absl::Status Update(const std::string& id, Change change) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<UniqueFd> turn = TakeTurn();
    if (!turn.ok()) return turn.status();
    absl::StatusOr<v1::Group> group = Read(id);
    if (!group.ok()) return group.status();
    change(*group);
    return Write(*group);
  }
  // It is removed, and each member is to be told.
  absl::Status MarkRemoved(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Forget(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // NotFound; DataLoss names the file.
  absl::StatusOr<v1::Group> Find(const std::string& id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The newest of this name that is not removed. NotFound names the groups there are, and records that can't
  // be read.
  absl::StatusOr<v1::Group> FindByReference(absl::string_view reference) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Newest first. A record that can't be read keeps nobody from the others: each has its error in
  // `unreadable`, by its group's id.
  absl::StatusOr<std::vector<v1::Group>> List(std::map<std::string, absl::Status>* unreadable = nullptr) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::string PathOf(const std::string& id) const;
  std::string WorkPathOf(const std::string& id) const;
  absl::StatusOr<UniqueFd> TakeTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<v1::Group> Read(const std::string& id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const v1::Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<v1::Group>> ReadAll(std::map<std::string, absl::Status>* unreadable) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  mutable absl::Mutex mutex_;
};

// 32 hexadecimal digits. InvalidArgument otherwise.
absl::Status CheckGroupId(absl::string_view id);
std::string NewGroupId();

}  // namespace rekindle::daemon
