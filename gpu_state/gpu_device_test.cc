#include "gpu_state/gpu_device.h"

#include <gtest/gtest.h>

namespace rekindle::gpu {
namespace {

constexpr char kText[] = "GPU-8a6c2f1e-0b1d-4c3e-9f00-0123456789ab";

TEST(GpuUuid, IsReadAndWrittenAsNvidiaSmiDoes) {
  auto uuid = ParseUuid(kText);
  ASSERT_TRUE(uuid.ok()) << uuid.status();
  EXPECT_EQ(uuid->bytes[0], 0x8a);
  EXPECT_EQ(uuid->bytes[15], 0xab);
  EXPECT_EQ(FormatUuid(*uuid), kText);
  auto bare = ParseUuid("8A6C2F1E-0b1d-4c3e-9f00-0123456789ab");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(FormatUuid(*bare), kText);
}

TEST(GpuUuid, RefusesWhatIsNone) {
  for (const char* text : {"", "0", "GPU-", "GPU-8a6c2f1e", "GPU-8a6c2f1e-0b1d-4c3e-9f00-0123456789abcd",
                           "GPU-8a6c2f1e-0b1d-4c3e-9f00-0123456789ag"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseUuid(text).status())) << text;
  }
}

}  // namespace
}  // namespace rekindle::gpu
