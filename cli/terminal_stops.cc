#include "cli/terminal_stops.h"

#include <signal.h>

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

sigset_t WatchedStops() {
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

TerminalStops::TerminalStops()
    : watch_(WatchedStops(), [](int) { daemon::StopWhenNoJobStandsStill(StopThisProcess); }) {
  const sigset_t output = SetOf({SIGTTOU});
  ::pthread_sigmask(SIG_BLOCK, &output, nullptr);
}

TerminalStops::~TerminalStops() {
  const sigset_t output = SetOf({SIGTTOU});
  ::pthread_sigmask(SIG_UNBLOCK, &output, nullptr);
}

}  // namespace rekindle::cli
