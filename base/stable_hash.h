// A hash that is the same in all builds and on all machines, unlike absl::Hash. Anybody can make two texts of
// one hash: nothing that matters may depend on there being none.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace rekindle {

// FNV-1a.
inline uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace rekindle
