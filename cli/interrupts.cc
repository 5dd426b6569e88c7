#include "cli/interrupts.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace rekindle::cli {
namespace {

sigset_t Watched(const std::vector<int>& asked, std::vector<int> unless_ignored) {
  sigset_t set;
  sigemptyset(&set);
  unless_ignored.insert(unless_ignored.end(), {SIGINT, SIGTERM, SIGHUP});
  for (const int signal : unless_ignored) {
    struct sigaction action;
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  for (const int signal : asked) sigaddset(&set, signal);
  return set;
}

}  // namespace

Interrupts::Interrupts(const std::vector<int>& asked, const std::vector<int>& unless_ignored)
    : unless_ignored_(unless_ignored),
      watch_(Watched(asked, unless_ignored), [this](int signal) { Take(signal); }) {}

void Interrupts::SetAction(std::function<void(int)> action) {
  absl::MutexLock lock(&mutex_);
  action_ = std::move(action);
  if (action_ && pending_ != 0) action_(std::exchange(pending_, 0));
}

void Interrupts::Take(int signal) {
  absl::MutexLock lock(&mutex_);
  if (action_) {
    action_(signal);
  } else if (pending_ == 0 ||
             std::find(unless_ignored_.begin(), unless_ignored_.end(), signal) == unless_ignored_.end()) {
    // One that asks for the end is not forgotten for one that does not.
    pending_ = signal;
  }
}

}  // namespace rekindle::cli
