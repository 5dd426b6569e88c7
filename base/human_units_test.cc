#include "base/human_units.h"

#include <gtest/gtest.h>

namespace rekindle {
namespace {

TEST(HumanUnitsTest, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(4096), "4.0 KiB");
  EXPECT_EQ(FormatBytes(1048575), "1.0 MiB");
  EXPECT_EQ(FormatBytes(3ull << 29), "1.5 GiB");
}

TEST(HumanUnitsTest, FormatsSeconds) {
  EXPECT_EQ(FormatSeconds(0.00031), "310 us");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.25), "4.25 s");
  EXPECT_EQ(FormatSeconds(200), "3 min 20 s");
}

TEST(HumanUnitsTest, ParsesBytes) {
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("64K"), 65536u);
  EXPECT_EQ(*ParseBytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(*ParseBytes(" 20 MB "), 20u << 20);
  for (const char* bad : {"", "K", "12Q", "1e3x", "-1", "99999999999999P"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
}

}  // namespace
}  // namespace rekindle
