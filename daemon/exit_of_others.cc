#include "daemon/exit_of_others.h"

#include <memory>
#include <optional>

#include "base/exit_events.h"
#include "base/log.h"
#include "base/pidfd.h"

namespace rekindle::daemon {
namespace {

// Of the whole process; null: not needed here, or the kernel does not tell us. Made once: to listen has the
// kernel make an event of each process that begins or ends on the machine.
ExitEvents* Events() {
  static ExitEvents* const events = []() -> ExitEvents* {
    if (ExitEvents::PidfdsTell()) return nullptr;
    auto listening = ExitEvents::Listen();
    if (listening.ok()) return listening->release();
    Log(LogLevel::kDebug, listening.status().message());
    return nullptr;
  }();
  return events;
}

}  // namespace

void ExpectExitOf(pid_t pid) {
  ExitEvents* const events = Events();
  if (events == nullptr) return;
  if (const absl::Status expected = events->Expect(pid); !expected.ok())
    Log(LogLevel::kWarning, expected.message());
}

ExitState ExitOfStranger(int ended, pid_t pid, std::atomic<bool>* unknown) {
  if (ExitEvents* const events = Events(); events != nullptr) {
    if (std::optional<ExitState> exit = events->Take(pid)) return *exit;
  }
  if (std::optional<ExitState> exit = ExitOfEnded(ended)) return *exit;
  unknown->store(true);
  ExitState exit;
  exit.code = 255;
  return exit;
}

}  // namespace rekindle::daemon
