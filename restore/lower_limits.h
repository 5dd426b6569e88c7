// Resource limits that a restored process has not got back: without CAP_SYS_RESOURCE none can be raised above
// what whoever restores it has, and CRIU goes on without.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle::restore {

// For people, one for each limit of `process` that is lower than its core-PID.img says. Of a process that has
// ended, or of an image that does not tell, none.
std::vector<std::string> LowerLimits(absl::string_view core_image, pid_t process);

}  // namespace rekindle::restore
