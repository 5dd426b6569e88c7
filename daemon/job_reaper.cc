#include "daemon/job_reaper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/children.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/wait_status.h"

namespace rekindle::daemon {

void JobEnd::Set(const ExitState& exit) {
  std::vector<std::function<void()>> to_tell;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exit_ = exit;
    ended_.notify_all();
    to_tell.swap(to_tell_);
  }
  for (const std::function<void()>& told : to_tell) told();
}

void JobEnd::OnceSet(std::function<void()> told) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!exit_) {
      to_tell_.push_back(std::move(told));
      return;
    }
  }
  told();
}

std::optional<ExitState> JobEnd::WaitFor(absl::Duration timeout) const {
  // By the steady clock; more than this would overflow it.
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, kLongest)),
                  [this] { return exit_.has_value(); });
  return exit_;
}

void JobReaper::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  }
  thread_.join();
}

namespace {

// How soon a zombie is reaped that its tracer has let go of.
constexpr int kLookForReapableMs = 100;

}  // namespace

ExitState JobReaper::ReapChild(pid_t pid) {
  int status = 0;
  // A zombie with a tracer is not its parent's before that has looked, which may be never: others' ends are
  // not to wait for it.
  const pid_t reaped = ::waitpid(pid, &status, __WALL | WNOHANG);
  // Its children are whoever collects orphans' by now.
  if (MayHaveStrays()) ReapStrays({});
  if (reaped == pid) return ExitStateOf(status);
  if (reaped == 0) {
    unreaped_.push_back(pid);
    if (const absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid); stat.ok() && stat->state == 'Z')
      return ExitStateOf(stat->exit_status);
  }
  ExitState exit;
  exit.code = 255;  // somebody else's child after all: how it ended nobody can tell
  return exit;
}

absl::StatusOr<std::shared_ptr<const JobEnd>> JobReaper::Adopt(pid_t pid,
                                                               std::function<void(const ExitState&)> on_end,
                                                               std::function<void()> before_reaping) {
  absl::StatusOr<UniqueFd> pidfd = OpenProcess(pid);
  RK_RETURN_IF_ERROR(Annotate(pidfd.status(), absl::StrCat("watching process ", pid)));
  return Watch(
      *std::move(pidfd),
      [this, pid, before_reaping = std::move(before_reaping)](int) {
        if (before_reaping) before_reaping();
        return ReapChild(pid);
      },
      std::move(on_end));
}

absl::StatusOr<std::shared_ptr<const JobEnd>> JobReaper::Watch(UniqueFd ended,
                                                               std::function<ExitState(int ended)> how,
                                                               std::function<void(const ExitState&)> on_end) {
  auto end = std::make_shared<JobEnd>();
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) {
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC)), stop(::eventfd(0, EFD_CLOEXEC));
    epoll_event stop_event{};
    stop_event.events = EPOLLIN;
    stop_event.data.fd = stop.get();
    if (!epoll.valid() || !stop.valid() ||
        ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop.get(), &stop_event) != 0) {
      return ErrnoStatus(errno, "starting to watch jobs");
    }
    epoll_ = std::move(epoll);
    stop_ = std::move(stop);
    thread_ = std::thread(&JobReaper::Loop, this);
  }
  int key = ended.get();
  watched_[key] = Watched{std::move(ended), std::move(how), end, std::move(on_end)};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = key;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, key, &event) != 0) {
    int error = errno;
    watched_.erase(key);
    return ErrnoStatus(error, "watching a job");
  }
  return end;
}

void JobReaper::Loop() {
  int epoll, stop;
  {
    absl::MutexLock lock(&mutex_);
    epoll = epoll_.get();
    stop = stop_.get();
  }
  for (;;) {
    epoll_event event;
    int n = ::epoll_wait(epoll, &event, 1, unreaped_.empty() ? -1 : kLookForReapableMs);
    if (n < 0 && errno != EINTR) return;
    std::erase_if(unreaped_, [](pid_t pid) { return ::waitpid(pid, nullptr, __WALL | WNOHANG) != 0; });
    if (n <= 0) continue;
    if (event.data.fd == stop) return;
    Reap(event.data.fd);
  }
}

void JobReaper::Reap(int ended) {
  Watched watched;
  {
    absl::MutexLock lock(&mutex_);
    auto it = watched_.find(ended);
    if (it == watched_.end()) return;
    watched = std::move(it->second);
    watched_.erase(it);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, ended, nullptr);
  }
  const ExitState exit = watched.how(watched.ended.get());
  watched.how = nullptr;  // what it held is gone before anybody is told
  if (watched.on_end) watched.on_end(exit);
  watched.end->Set(exit);
}

}  // namespace rekindle::daemon
