#include "daemon/owners_at_work.h"

namespace rekindle::daemon {

OwnersAtWork::Work::Work(OwnersAtWork& owners, uid_t owner) : owners_(owners), owner_(owner) {
  absl::MutexLock lock(&owners_.mutex_);
  owners_.AwaitTidied(owner_);
  ++owners_.at_work_[owner_];
}

OwnersAtWork::Work::~Work() {
  absl::MutexLock lock(&owners_.mutex_);
  if (--owners_.at_work_[owner_] > 0) return;
  owners_.at_work_.erase(owner_);
  owners_.Tidy(owner_);
}

void OwnersAtWork::TidyUnlessAtWork(uid_t owner) {
  absl::MutexLock lock(&mutex_);
  AwaitTidied(owner);
  if (!at_work_.contains(owner)) Tidy(owner);
}

void OwnersAtWork::AwaitTidied(uid_t owner) {
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !tidied_.contains(owner); };
  mutex_.Await(absl::Condition(&done));
}

void OwnersAtWork::Tidy(uid_t owner) {
  tidied_.insert(owner);
  mutex_.Unlock();
  tidy_(owner);
  mutex_.Lock();
  tidied_.erase(owner);
}

}  // namespace rekindle::daemon
