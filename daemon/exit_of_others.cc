#include "daemon/exit_of_others.h"

#include <optional>

#include "base/pidfd.h"

namespace rekindle::daemon {

ExitState ExitOfStranger(int ended, std::atomic<bool>* unknown) {
  if (std::optional<ExitState> exit = ExitOfEnded(ended)) return *exit;
  unknown->store(true);
  ExitState exit;
  exit.code = 255;
  return exit;
}

}  // namespace rekindle::daemon
