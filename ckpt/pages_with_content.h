// Which pages of a task hold something, as CRIU will find them: in memory or swapped out, neither a file's
// nor the kernel's page of zeros.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/address_range.h"

namespace rekindle::ckpt {

// Of the plain anonymous memory from `start` to `end` (whole pages), ascending. `pagemap` is the task's
// /proc/PID/pagemap. Nothing where the kernel can't be asked.
std::vector<AddressRange> PagesWithContent(int pagemap, uint64_t start, uint64_t end);

// The same, as a kernel before Linux 6.7 is asked. CAP_SYS_ADMIN is needed; without it, only swapped pages
// are told.
std::vector<AddressRange> PagesWithContentByEntries(int pagemap, uint64_t start, uint64_t end);

}  // namespace rekindle::ckpt
