#include "daemon/group_point.h"

#include <signal.h>

#include <cstdlib>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace rekindle::daemon {

void PassGroupPoint(const char* point) {
  const char* variable = ::getenv("REKINDLE_GROUP_POINT");
  if (variable == nullptr) return;
  absl::string_view what = variable;
  if (!absl::ConsumePrefix(&what, point)) return;
  // To this very thread, so that it does not run a moment longer.
  if (what == "=KILL") ::raise(SIGKILL);
  if (what == "=STOP") ::raise(SIGSTOP);
}

}  // namespace rekindle::daemon
