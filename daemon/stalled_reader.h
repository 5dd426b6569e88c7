// Notices that whoever reads a stream takes nothing of it any more. By itself a send waits for ever then.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// Thread-safe; one send at a time.
class StalledReader {
 public:
  // `give_up` is called once, from a thread of its own, when one send takes longer than `patience`: it has to
  // make that send end. Null: nobody is given up.
  StalledReader(absl::Duration patience, std::function<void()> give_up);
  ~StalledReader();

  // While it lives something is being sent.
  class Sending {
   public:
    explicit Sending(StalledReader& reader) : reader_(reader) { reader_.SetSending(true); }
    ~Sending() { reader_.SetSending(false); }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;

   private:
    StalledReader& reader_;
  };

  bool given_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return given_up_;
  }

 private:
  void SetSending(bool sending) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    sending_ = sending;
    if (sending) ++sends_;
  }
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration patience_;
  const std::function<void()> give_up_;
  mutable absl::Mutex mutex_;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t sends_ ABSL_GUARDED_BY(mutex_) = 0;  // that have begun
  std::thread thread_;
};

}  // namespace rekindle::daemon
