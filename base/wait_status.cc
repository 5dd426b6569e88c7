#include "base/wait_status.h"

#include <sys/wait.h>

namespace rekindle {

ExitState ExitStateOf(int wait_status) {
  ExitState exit;
  if (WIFSIGNALED(wait_status)) {
    exit.signal = WTERMSIG(wait_status);
  } else {
    exit.code = WEXITSTATUS(wait_status);
  }
  return exit;
}

}  // namespace rekindle
