// Whom tests that run as root become, or give files to, where root could do all.
#pragma once

#include <sys/types.h>

namespace rekindle {

inline constexpr uid_t kNobody = 65534;

}  // namespace rekindle
