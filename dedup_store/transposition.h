// Byte planes of 8-byte words. Heaps are full of pointers and small numbers whose upper bytes repeat: put
// beside each other (all first bytes, then all second ones, …) they compress better and faster than in place.
// The idea is that of the "shuffle" filter of HDF5 and Blosc.
#pragma once

#include <cstddef>

namespace rekindle::store {

// `bytes` is a multiple of 128. Source and target must not overlap.
void Transpose(const std::byte* words, std::byte* planes, size_t bytes);
void TransposeBack(const std::byte* planes, std::byte* words, size_t bytes);

}  // namespace rekindle::store
