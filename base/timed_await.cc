#include "base/timed_await.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/clock.h"

namespace rekindle {
namespace {

// Who has the lock just then when a time is over may not look at conditions any more when letting go of it.
constexpr std::chrono::milliseconds kTryAgainAfter(1);
// No moment of the clock is so far away that it can't be said.
constexpr absl::Duration kLongestWait = absl::Hours(24);

// A thread that has those whose time is over look at it.
class Alarms {
 public:
  struct Alarm;
  using Set = std::multimap<SteadyClock::time_point, Alarm*>;
  struct Alarm {
    absl::Mutex& mutex;  // with which the others are guarded
    bool rung = false;
    Set::iterator place = {};
  };

  static Alarms& Get() {
    static Alarms& all = *new Alarms;  // for threads that wait while the process ends, too
    return all;
  }

  // With its mutex held. False: the kernel makes no more threads.
  bool Add(absl::Duration after, Alarm& alarm) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!has_thread_ && !StartThread()) return false;
    alarm.place = set_.emplace(SteadyClock::now() + absl::ToChronoNanoseconds(after), &alarm);
    if (alarm.place == set_.begin()) changed_.notify_one();
    return true;
  }
  void Remove(const Alarm& alarm) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (alarm.place != set_.end()) set_.erase(alarm.place);
  }

 private:
  bool StartThread() {
    // The process's signals are for its own threads.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { RingAll(); }).detach();
      has_thread_ = true;
    } catch (const std::system_error&) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return has_thread_;
  }

  void RingAll() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      const SteadyClock::time_point now = SteadyClock::now();
      bool again = false;
      for (auto next = set_.begin(); next != set_.end() && next->first <= now;) {
        Alarm& alarm = *next->second;
        if (!Ring(alarm)) {
          again = true;
          ++next;
          continue;
        }
        alarm.place = set_.end();
        next = set_.erase(next);
      }
      if (again) {
        changed_.wait_for(lock, kTryAgainAfter);
      } else if (set_.empty()) {
        changed_.wait(lock);
      } else {
        const SteadyClock::time_point first = set_.begin()->first;
        changed_.wait_until(lock, first);
      }
    }
  }

  // Never waits for the lock: whoever has it may be waiting for another alarm. When it is unlocked all who
  // wait under it look at their conditions.
  static bool Ring(Alarm& alarm) {
    if (!alarm.mutex.TryLock()) return false;
    alarm.rung = true;
    alarm.mutex.Unlock();
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_thread_ = false;
  Set set_;
};

}  // namespace

bool AwaitUntil(absl::Mutex& mutex, const absl::Condition& condition, const Deadline& deadline) {
  for (;;) {
    if (condition.Eval()) return true;
    const absl::Duration left = std::min(deadline.left(), kLongestWait);
    if (left == absl::ZeroDuration()) return false;
    Alarms::Alarm alarm{mutex};
    if (!Alarms::Get().Add(left, alarm)) {
      mutex.AwaitWithTimeout(condition, left);
      continue;
    }
    const auto over = [&] { return alarm.rung || condition.Eval(); };
    mutex.Await(absl::Condition(&over));
    Alarms::Get().Remove(alarm);
  }
}

}  // namespace rekindle
