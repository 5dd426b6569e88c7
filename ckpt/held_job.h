// Jobs that the runtime hook holds at their ready(): see docs/hook.md.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"

namespace rekindle::ckpt {

// Does the hook hold this process now?
bool IsHeld(pid_t pid);

// Lets it go on as the process that it is. NotFound: nothing holds it.
absl::Status LetHeldJobGoOn(pid_t pid);

}  // namespace rekindle::ckpt
