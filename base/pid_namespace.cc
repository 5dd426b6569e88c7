#include "base/pid_namespace.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace rekindle {

std::optional<bool> IsInOurPidNamespace(pid_t pid) {
  struct stat ours, its;
  if (::stat("/proc/self/ns/pid", &ours) != 0 ||
      ::stat(absl::StrCat("/proc/", pid, "/ns/pid").c_str(), &its) != 0) {
    return std::nullopt;
  }
  return its.st_dev == ours.st_dev && its.st_ino == ours.st_ino;
}

uint64_t OurPidNamespace() {
  struct stat ours;
  return ::stat("/proc/self/ns/pid", &ours) == 0 ? ours.st_ino : 0;
}

}  // namespace rekindle
