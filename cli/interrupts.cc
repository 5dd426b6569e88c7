#include "cli/interrupts.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace rekindle::cli {
namespace {

sigset_t Watched() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action;
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

Interrupts::Interrupts() : watched_(Watched()) {
  ::pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  signals_.Reset(::signalfd(-1, &watched_, SFD_CLOEXEC));
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread(&Interrupts::Loop, this);
}

Interrupts::~Interrupts() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
  ::pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
}

void Interrupts::SetAction(std::function<void(int)> action) {
  absl::MutexLock lock(&mutex_);
  action_ = std::move(action);
  if (action_ && pending_ != 0) action_(std::exchange(pending_, 0));
}

void Interrupts::Loop() {
  for (;;) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    absl::MutexLock lock(&mutex_);
    if (action_) {
      action_(static_cast<int>(info.ssi_signo));
    } else {
      pending_ = static_cast<int>(info.ssi_signo);
    }
  }
}

}  // namespace rekindle::cli
