#include "daemon/file_watch.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/parallel.h"
#include "base/timed_await.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

// An event that one waits for may be read by another who has just come.
constexpr absl::Duration kOthersMayHaveReadIt = absl::Milliseconds(20);
// Whoever writes all the time has nobody told of it more often.
constexpr absl::Duration kBetweenTellings = absl::Milliseconds(50);

}  // namespace

// Whoever waits reads the events for all: the thread that tells of them, or somebody in WaitForChange.
// Thread-safe.
class FileWatches {
 public:
  static FileWatches& OfThisProcess() {
    static auto& watches = *new FileWatches();
    return watches;
  }

  bool Add(FileWatch& watch, const std::string& path) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // Others may have given one back.
    if (!inotify_.valid()) inotify_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!inotify_.valid()) return false;
    // What is queued for a number was of its earlier watches.
    ReadEvents();
    watch.number_ = ::inotify_add_watch(inotify_.get(), path.c_str(), IN_MODIFY);
    if (watch.number_ < 0) return false;
    watches_.emplace(watch.number_, &watch);
    return true;
  }

  void Remove(const FileWatch& watch) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto [first, last] = watches_.equal_range(watch.number_);
    for (auto it = first; it != last; ++it) {
      if (it->second != &watch) continue;
      watches_.erase(it);
      break;
    }
    if (!watches_.contains(watch.number_)) ::inotify_rm_watch(inotify_.get(), watch.number_);
  }

  bool WaitForChange(FileWatch& watch, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    const Deadline deadline(timeout);
    absl::MutexLock lock(&mutex_);
    for (;;) {
      ReadEvents();
      if (std::exchange(watch.changed_, false)) return true;
      if (deadline.passed()) return false;
      if (somebody_polls_) {
        const auto turn = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
          return watch.changed_ || !somebody_polls_;
        };
        AwaitUntil(mutex_, absl::Condition(&turn), deadline);
        continue;
      }
      Poll(Deadline(std::min(deadline.left(), kOthersMayHaveReadIt)).left_ms());
    }
  }

  bool OnChange(FileWatch& watch, std::function<void()> told) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!somebody_tells_) {
      const absl::Status begun = CatchNoMoreThreads([this] {
        std::thread(&FileWatches::Tell, this).detach();
        return absl::OkStatus();
      });
      if (!begun.ok()) return false;
      somebody_tells_ = true;
    }
    watch.told_ = std::move(told);
    if (watch.changed_) watch.told_();
    return true;
  }

 private:
  [[noreturn]] void Tell() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (;;) {
      const auto nobody_polls = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !somebody_polls_; };
      mutex_.Await(absl::Condition(&nobody_polls));
      Poll(-1);
      ReadEvents();
      mutex_.Unlock();
      absl::SleepFor(kBetweenTellings);
      mutex_.Lock();
    }
  }

  // Until there are events, or others may have read them.
  void Poll(int timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    somebody_polls_ = true;
    pollfd entry{inotify_.get(), POLLIN, 0};
    mutex_.Unlock();
    ::poll(&entry, 1, timeout_ms);
    mutex_.Lock();
    somebody_polls_ = false;
  }

  void ReadEvents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    alignas(inotify_event) char events[4096];
    for (ssize_t got; (got = ::read(inotify_.get(), events, sizeof events)) > 0;) {
      for (ssize_t at = 0; at < got;) {
        inotify_event event;
        std::memcpy(&event, events + at, sizeof event);
        at += static_cast<ssize_t>(sizeof event + event.len);
        const bool lost_some = (event.mask & IN_Q_OVERFLOW) != 0;
        const auto [first, last] =
            lost_some ? std::pair(watches_.begin(), watches_.end()) : watches_.equal_range(event.wd);
        for (auto it = first; it != last; ++it) {
          it->second->changed_ = true;
          if (it->second->told_) it->second->told_();
        }
      }
    }
  }

  absl::Mutex mutex_;
  UniqueFd inotify_ ABSL_GUARDED_BY(mutex_);
  std::multimap<int, FileWatch*> watches_ ABSL_GUARDED_BY(mutex_);  // by number
  bool somebody_polls_ ABSL_GUARDED_BY(mutex_) = false;
  bool somebody_tells_ ABSL_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<FileWatch> FileWatch::Of(const std::string& path) {
  std::unique_ptr<FileWatch> watch(new FileWatch());
  if (!FileWatches::OfThisProcess().Add(*watch, path)) return nullptr;
  return watch;
}

FileWatch::~FileWatch() {
  if (number_ >= 0) FileWatches::OfThisProcess().Remove(*this);
}

bool FileWatch::WaitForChange(absl::Duration timeout) {
  return FileWatches::OfThisProcess().WaitForChange(*this, timeout);
}

bool FileWatch::OnChange(std::function<void()> told) {
  return FileWatches::OfThisProcess().OnChange(*this, std::move(told));
}

}  // namespace rekindle::daemon
