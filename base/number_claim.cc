#include "base/number_claim.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>

namespace rekindle {

bool ClaimNumber(const UniqueFd& file, pid_t number, uint32_t pid_namespace) {
  struct stat space = {};
  if (pid_namespace == 0) (void)::stat("/proc/self/ns/pid", &space);
  constexpr int kPidBits = 22;
  struct flock byte = {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = static_cast<off_t>((pid_namespace == 0 ? uint64_t{space.st_ino} & 0xffffffff : pid_namespace)
                                        << kPidBits |
                                    static_cast<uint64_t>(number));
  byte.l_len = 1;
  return ::fcntl(file.get(), F_OFD_SETLK, &byte) == 0;
}

}  // namespace rekindle
