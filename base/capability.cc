#include "base/capability.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "base/file.h"
#include "base/process_stat.h"

namespace rekindle {

bool HasCapability(int capability) {
  uint64_t effective = 0;
  return absl::SimpleHexAtoi(StatusField(ReadFile("/proc/thread-self/status").value_or(""), "CapEff"),
                             &effective) &&
         (effective >> capability & 1) != 0;
}

}  // namespace rekindle
