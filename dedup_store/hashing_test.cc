#include "dedup_store/hashing.h"

#include <string>

#include "dedup_store/store_testing.h"
#include "gtest/gtest.h"

namespace rekindle::store {
namespace {

TEST(HashingTest, WideFingerprintHoldsTheNarrowOne) {
  const Fingerprinter ours(StoreSeed{1, 2, 3}), others(StoreSeed{1, 2, 4});
  for (size_t pages : {1, 3, 64}) {
    std::string data = MakePages(pages, pages);
    const Hash128 wide = ours.Wide(data.data(), data.size());
    EXPECT_EQ(wide.lo, ours.Of(data.data(), data.size()));
    EXPECT_EQ(ours.Wide(data.data(), data.size()), wide);
    EXPECT_FALSE(others.Wide(data.data(), data.size()) == wide) << "another store's key";
    data.back() ^= 1;
    const Hash128 changed = ours.Wide(data.data(), data.size());
    EXPECT_TRUE(changed.lo != wide.lo && changed.hi != wide.hi);
  }
}

TEST(HashingTest, AllProcessorsAgree) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  const std::string data = MakePages(32, 7);
  const std::string secret = MakePages(1, 8);
  const auto* key = reinterpret_cast<const uint8_t*>(secret.data());
  EXPECT_EQ(PageFingerprintAvx2(data.data(), key), PageFingerprintBaseline(data.data(), key));
  EXPECT_EQ(FingerprintAvx2(data.data(), data.size(), key),
            FingerprintBaseline(data.data(), data.size(), key));
  EXPECT_EQ(WideFingerprintAvx2(data.data(), data.size(), key),
            WideFingerprintBaseline(data.data(), data.size(), key));
#else
  GTEST_SKIP() << "only for x86-64";
#endif
}

}  // namespace
}  // namespace rekindle::store
