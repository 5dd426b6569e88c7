#include "gpu_state/pid_namespace.h"

#include <sys/stat.h>

namespace rekindle::gpu {

ino_t OwnPidNamespace() {
  struct stat own;
  return ::stat("/proc/self/ns/pid", &own) == 0 ? own.st_ino : 0;
}

bool InFirstPidNamespace() {
  constexpr ino_t kFirst = 0xEFFFFFFC;  // PROC_PID_INIT_INO
  return OwnPidNamespace() == kFirst;
}

}  // namespace rekindle::gpu
