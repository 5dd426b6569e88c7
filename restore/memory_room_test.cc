#include "restore/memory_room.h"

#include <fcntl.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MemoryRoomTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(directory_.path(), "/", name), text).ok());
  }
  uint64_t Left() { return MemoryRoom(*OpenFile(directory_.path(), O_RDONLY | O_DIRECTORY)).Left(); }

  TemporaryDirectory directory_ = *TemporaryDirectory::Make("/tmp", "rk-memory-room-test.");
};

TEST_F(MemoryRoomTest, NoGroupAndNoLimitAreUnlimited) {
  EXPECT_EQ(MemoryRoom().Left(), MemoryRoom::kUnlimited);
  EXPECT_EQ(Left(), MemoryRoom::kUnlimited);  // as where the group has gone
  Write("memory.current", "4096\n");
  Write("memory.max", "max\n");
  EXPECT_EQ(Left(), MemoryRoom::kUnlimited);
}

TEST_F(MemoryRoomTest, OldHierarchyWithoutLimit) {
  Write("memory.usage_in_bytes", "4096\n");
  Write("memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Left(), MemoryRoom::kUnlimited);
}

class WhatIsLeftTest : public MemoryRoomTest,
                       public ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(WhatIsLeftTest, OfALimit) {
  const auto& [limit, used] = GetParam();
  Write(limit, absl::StrCat(64 * kMiB, "\n"));
  Write(used, absl::StrCat(24 * kMiB, "\n"));
  EXPECT_EQ(Left(), 36 * kMiB);
  Write(used, absl::StrCat(63 * kMiB, "\n"));
  EXPECT_EQ(Left(), 0u);
  Write("memory.stat", absl::StrCat("cache ", 30 * kMiB, "\ninactive_file ", 8 * kMiB, "\nactive_file ",
                                    4 * kMiB, "\ntotal_inactive_file 1\n"));
  EXPECT_EQ(Left(), 9 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Hierarchies, WhatIsLeftTest,
                         ::testing::Values(std::pair("memory.max", "memory.current"),
                                           std::pair("memory.limit_in_bytes", "memory.usage_in_bytes")));

TEST_F(MemoryRoomTest, LimitsOfGroupsAroundAGroupCountToo) {
  const std::string outer = absl::StrCat(directory_.path(), "/outer"), inner = absl::StrCat(outer, "/inner");
  ASSERT_TRUE(MakeDirectories(inner).ok());
  for (const std::string group : {"outer/", "outer/inner/"}) Write(group + "cgroup.procs", "");
  Write("outer/memory.max", absl::StrCat(64 * kMiB, "\n"));
  Write("outer/memory.current", absl::StrCat(24 * kMiB, "\n"));
  Write("outer/inner/memory.max", "max\n");
  Write("outer/inner/memory.current", "4096\n");
  auto limits = MemoryLimitsAbove(inner);
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].folder, outer);
  EXPECT_EQ(limits[0].left, 36 * kMiB);
  Write("outer/inner/memory.max", "8192\n");
  limits = MemoryLimitsAbove(inner);
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_EQ(limits[0].folder, inner);
  EXPECT_EQ(limits[0].left, 0u);
}

TEST_F(MemoryRoomTest, MoreThanALimitThatWasLowered) {
  Write("memory.max", "4096\n");
  Write("memory.current", "8192\n");
  EXPECT_EQ(Left(), 0u);
}

}  // namespace
}  // namespace rekindle::restore
