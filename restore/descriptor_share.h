// How many of the pager's descriptors one clone may take.
//
// Each process whose memory is missing has one in the pager that all clones share, and a process gets such
// children by forking, as fast as it can. So nobody may take more than what is left for the others: however
// many clones fork without end, some stay free for those that don't.
#pragma once

#include <cstdint>

namespace rekindle::restore {

// This many processes each clone may have in any case.
inline constexpr uint64_t kProcessesInAnyCase = 16;

// How many processes with missing memory one clone may have where the pager may open `limit` descriptors and
// serves `processes` of `clones`.
uint64_t ShareOfDescriptors(uint64_t limit, uint64_t processes, uint64_t clones);

// So many make a clone of so large a share crowded: it should get its memory rather than fork further.
inline bool IsCrowded(uint64_t processes, uint64_t share) {
  return processes > kProcessesInAnyCase / 2 && processes > share / 4;
}

}  // namespace rekindle::restore
