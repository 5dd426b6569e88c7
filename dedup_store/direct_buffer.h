// Memory and offsets as direct I/O wants them: multiples of kDirectAlignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "dedup_store/block_io.h"

namespace rekindle::store {

constexpr uint64_t DirectFloor(uint64_t bytes) { return bytes / kDirectAlignment * kDirectAlignment; }
constexpr uint64_t DirectCeiling(uint64_t bytes) { return DirectFloor(bytes + kDirectAlignment - 1); }

struct FreeDirectBuffer {
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t{kDirectAlignment});
  }
};
using DirectBuffer = std::unique_ptr<std::byte[], FreeDirectBuffer>;
// Not cleared.
inline DirectBuffer MakeDirectBuffer(size_t bytes) {
  return DirectBuffer(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kDirectAlignment})));
}

}  // namespace rekindle::store
