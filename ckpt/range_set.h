// Stretches of one task's memory that something is known of.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "ckpt/address_range.h"

namespace rekindle::ckpt {

// Not thread-safe. Empty ranges are nothing.
class RangeSet {
 public:
  // Returns what of `range` was not in it, ascending.
  std::vector<AddressRange> Add(const AddressRange& range);
  // What of `range` is in it, ascending.
  std::vector<AddressRange> Within(const AddressRange& range) const;
  // All of it, ascending, with neighbours as one.
  std::vector<AddressRange> Ranges() const;

 private:
  std::map<uint64_t, uint64_t> ranges_;  // start to end; they may touch, and never overlap
};

}  // namespace rekindle::ckpt
