// What the code of each user's functions takes in the store: of revisions, also while they are copied, and
// when they have been replaced, for as long as instances run from them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::functions {

// In a std::shared_ptr. Thread-safe.
class CodeLedger : public std::enable_shared_from_this<CodeLedger> {
 public:
  // One copy, as long as it is there. By one thread at a time.
  class Charge {
   public:
    ~Charge() { Set(0); }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;
    void Set(uint64_t bytes) {
      ledger_->Change(owner_, bytes_, bytes);
      bytes_ = bytes;
    }

   private:
    friend class CodeLedger;
    Charge(std::shared_ptr<CodeLedger> ledger, uid_t owner) : ledger_(std::move(ledger)), owner_(owner) {}
    const std::shared_ptr<CodeLedger> ledger_;
    const uid_t owner_;
    uint64_t bytes_ = 0;
  };

  std::unique_ptr<Charge> Begin(uid_t owner) {
    return std::unique_ptr<Charge>(new Charge(shared_from_this(), owner));
  }

  // This user's, or all.
  uint64_t Of(std::optional<uid_t> owner) const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!owner) return all_;
    const auto of = of_each_.find(*owner);
    return of == of_each_.end() ? 0 : of->second;
  }

 private:
  void Change(uid_t owner, uint64_t from, uint64_t to) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    all_ += to - from;
    if ((of_each_[owner] += to - from) == 0) of_each_.erase(owner);
  }

  mutable absl::Mutex mutex_;
  uint64_t all_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uid_t, uint64_t> of_each_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
