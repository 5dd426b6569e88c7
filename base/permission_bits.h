// Of a file's mode what chmod(2) sets: the rest says what kind of file it is.
#pragma once

#include <sys/types.h>

namespace rekindle {

inline constexpr mode_t kPermissionBits = 07777;

}  // namespace rekindle
