#include "gpu_state/pid_namespace.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "base/process_stat.h"

namespace rekindle::gpu {

ino_t OwnPidNamespace() {
  struct stat own;
  return ::stat("/proc/self/ns/pid", &own) == 0 ? own.st_ino : 0;
}

bool InFirstPidNamespace() {
  constexpr ino_t kFirst = 0xEFFFFFFC;  // PROC_PID_INIT_INO
  return OwnPidNamespace() == kFirst;
}

bool AnyoneIsIn(ino_t name_space) {
  for (const pid_t pid : ListProcesses()) {
    struct stat theirs;
    if (::stat(absl::StrCat("/proc/", pid, "/ns/pid").c_str(), &theirs) == 0 && theirs.st_ino == name_space)
      return true;
  }
  return false;
}

}  // namespace rekindle::gpu
