#include "cli/terminal_stops.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>

#include <initializer_list>

#include "daemon/embedded_service.h"

namespace rekindle::cli {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals) sigaddset(&set, signal);
  return set;
}

sigset_t Watched() {
  struct sigaction action;
  const bool ignored = ::sigaction(SIGTSTP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  return ignored ? SetOf({}) : SetOf({SIGTSTP});
}

// By the signal itself: the shell says how it was stopped, and one without a shell that could let it go on
// (an orphaned process group) is not stopped.
void StopThisProcess() {
  const sigset_t stop = SetOf({SIGTSTP});
  ::pthread_kill(::pthread_self(), SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

}  // namespace

TerminalStops::TerminalStops() : watched_(Watched()) {
  const sigset_t output = SetOf({SIGTTOU});
  ::pthread_sigmask(SIG_BLOCK, &output, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  signals_.Reset(::signalfd(-1, &watched_, SFD_CLOEXEC));
  stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  // Other signals are not for this thread: those who wait for them block them later.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(&TerminalStops::Loop, this);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TerminalStops::~TerminalStops() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
  const sigset_t output = SetOf({SIGTTOU});
  ::pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
  ::pthread_sigmask(SIG_UNBLOCK, &output, nullptr);
}

void TerminalStops::Loop() {
  for (;;) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    daemon::StopWhenNoJobStandsStill(StopThisProcess);
  }
}

}  // namespace rekindle::cli
