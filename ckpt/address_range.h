// A stretch of a task's memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace rekindle::ckpt {

struct AddressRange {
  uint64_t start = 0, end = 0;  // bytes, of whole pages
  friend bool operator==(const AddressRange&, const AddressRange&) = default;
};

using TaskRanges = std::map<pid_t, std::vector<AddressRange>>;

}  // namespace rekindle::ckpt
