// What of an image's pages is in this process's memory too: that of the capture it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace rekindle::store {

// Whole pages of a paged object, from `address` on. Not owned.
struct PagesInMemory {
  uint64_t address = 0;
  absl::Span<const std::byte> bytes;
};

struct ImageInMemory {
  std::string digest;  // of the image; empty: nothing is there
  // By object, ascending. The kernel may have taken any page back, or take it until it is written to
  // (MADV_FREE): it then reads as zeros.
  std::map<std::string, std::vector<PagesInMemory>> objects;
};

}  // namespace rekindle::store
