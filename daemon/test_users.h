// Two users for tests of who may do what.
#pragma once

#include <sys/types.h>

namespace rekindle::daemon {

inline constexpr uid_t kAlice = 1000, kBob = 1001;

}  // namespace rekindle::daemon
