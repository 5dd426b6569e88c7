#include "dedup_store/transposition.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace rekindle::store {
namespace {

TEST(Transposition, PutsTheBytesOfOnePlaceTogetherAndBack) {
  std::mt19937_64 random(3);
  for (size_t bytes : {size_t{128}, size_t{4096}, size_t{8192}, size_t{131072}}) {
    std::vector<std::byte> words(bytes), planes(bytes), back(bytes);
    for (std::byte& b : words) b = static_cast<std::byte>(random());
    Transpose(words.data(), planes.data(), bytes);
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(planes[i % 8 * (bytes / 8) + i / 8], words[i]) << bytes << " at " << i;
    }
    TransposeBack(planes.data(), back.data(), bytes);
    EXPECT_EQ(back, words);
  }
}

}  // namespace
}  // namespace rekindle::store
