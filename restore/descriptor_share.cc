#include "restore/descriptor_share.h"

#include <algorithm>

namespace rekindle::restore {
namespace {

constexpr uint64_t kOthers = 8;         // the part of the limit that is for files, connections, and all else
constexpr uint64_t kEachCloneOwns = 4;  // sockets, and the folder of its cgroup

}  // namespace

uint64_t ShareOfDescriptors(uint64_t limit, uint64_t processes, uint64_t clones) {
  const uint64_t usable = limit - limit / kOthers;
  const uint64_t used = processes + kEachCloneOwns * clones;
  return std::max(kProcessesInAnyCase, usable - std::min(usable, used));
}

}  // namespace rekindle::restore
