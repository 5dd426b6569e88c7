#include "cli/signal_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace rekindle::cli {

SignalWatch::SignalWatch(const sigset_t& signals, std::function<void(int)> action)
    : watched_(signals), action_(std::move(action)) {
  ::pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  signals_.Reset(::signalfd(-1, &watched_, SFD_CLOEXEC));
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(&SignalWatch::Loop, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SignalWatch::~SignalWatch() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
  ::pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
}

void SignalWatch::Loop() {
  for (;;) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    action_(static_cast<int>(info.ssi_signo));
  }
}

}  // namespace rekindle::cli
