#include "base/cgroup_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class CgroupMemoryTest : public ::testing::Test {
 protected:
  std::string Make(const std::string& folder) {
    const std::string path = absl::StrCat(folder_.path(), "/", folder);
    EXPECT_TRUE(MakeDirectories(path).ok());
    Write(folder + "/cgroup.procs", "");
    return path;
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(absl::StrCat(folder_.path(), "/", name), text).ok());
  }
  void Write(const std::string& name, uint64_t number) { Write(name, absl::StrCat(number, "\n")); }
  MemoryRoom Room() { return MemoryRoom(*OpenFile(folder_.path(), O_RDONLY | O_DIRECTORY)); }

  const TemporaryDirectory folder_ = *TemporaryDirectory::Make("/tmp", "rk-cgroup-memory-test.");
};

TEST_F(CgroupMemoryTest, NoGroupAndNoLimitAreUnlimited) {
  EXPECT_EQ(MemoryRoom().Left(), MemoryRoom::kUnlimited);
  EXPECT_EQ(MemoryRoom().Free(), MemoryRoom::kUnlimited);
  EXPECT_EQ(Room().Left(), MemoryRoom::kUnlimited);  // as where the group has gone
  Write("memory.current", "4096\n");
  Write("memory.max", "max\n");
  EXPECT_EQ(Room().Left(), MemoryRoom::kUnlimited);
  EXPECT_EQ(Room().Free(), MemoryRoom::kUnlimited);
}

TEST_F(CgroupMemoryTest, OldHierarchyWithoutLimit) {
  Write("memory.usage_in_bytes", "4096\n");
  Write("memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Room().Left(), MemoryRoom::kUnlimited);
  EXPECT_EQ(Room().Free(), MemoryRoom::kUnlimited);
}

struct Version {
  const char *limit, *used;
  // Of a memory.stat: 12 MiB in files of the group and those in it.
  const char* files;
};

class WhatIsLeftTest : public CgroupMemoryTest, public ::testing::WithParamInterface<Version> {};

TEST_P(WhatIsLeftTest, OfALimit) {
  Write(GetParam().limit, 64 * kMiB);
  Write(GetParam().used, 24 * kMiB);
  EXPECT_EQ(Room().Free(), 40 * kMiB);
  EXPECT_EQ(Room().Left(), 36 * kMiB);
  Write(GetParam().used, 63 * kMiB);
  EXPECT_EQ(Room().Free(), kMiB);
  EXPECT_EQ(Room().Left(), 0u);
  Write("memory.stat", GetParam().files);
  EXPECT_EQ(Room().Free(), 13 * kMiB);
  EXPECT_EQ(Room().Left(), 9 * kMiB);
}

TEST_P(WhatIsLeftTest, MoreThanALimitThatWasLowered) {
  Write(GetParam().limit, 4096);
  Write(GetParam().used, 8192);
  EXPECT_EQ(Room().Free(), 0u);
  EXPECT_EQ(Room().Left(), 0u);
}

TEST_P(WhatIsLeftTest, MoreFilesThanIsUsed) {
  Write(GetParam().limit, 64 * kMiB);
  Write(GetParam().used, kMiB);
  Write("memory.stat", GetParam().files);  // they are not counted at the same moment
  EXPECT_EQ(Room().Free(), 64 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(
    Versions, WhatIsLeftTest,
    ::testing::Values(Version{"memory.max", "memory.current",
                              "anon 31457280\nfile 31457280\ninactive_file 8388608\nactive_file 4194304\n"},
                      Version{"memory.limit_in_bytes", "memory.usage_in_bytes",
                              "cache 1\ninactive_file 1048576\nactive_file 1\ntotal_cache 31457280\n"
                              "total_inactive_file 8388608\ntotal_active_file 4194304\n"}));

TEST_F(CgroupMemoryTest, WhereItIsThrottledIsALimit) {
  Write("memory.current", 24 * kMiB);
  Write("memory.max", "max\n");
  Write("memory.high", "max\n");
  EXPECT_EQ(Room().Free(), MemoryRoom::kUnlimited);
  Write("memory.high", 64 * kMiB);
  EXPECT_EQ(Room().Free(), 40 * kMiB);
  Write("memory.max", 128 * kMiB);
  EXPECT_EQ(Room().Free(), 40 * kMiB);
  Write("memory.max", 32 * kMiB);
  EXPECT_EQ(Room().Free(), 8 * kMiB);
}

TEST_F(CgroupMemoryTest, LimitsOfGroupsAroundAGroupCountToo) {
  const std::string outer = Make("outer"), inner = Make("outer/inner");
  Write("outer/memory.max", 64 * kMiB);
  Write("outer/memory.current", 24 * kMiB);
  Write("outer/inner/memory.max", "max\n");
  Write("outer/inner/memory.current", 4096);
  auto limits = MemoryLimitsAbove(inner);
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].folder, outer);
  EXPECT_EQ(limits[0].free, 40 * kMiB);
  EXPECT_EQ(limits[0].left, 36 * kMiB);
  Write("outer/inner/memory.max", 8192);
  limits = MemoryLimitsAbove(inner);
  ASSERT_EQ(limits.size(), 2u);
  EXPECT_EQ(limits[0].folder, inner);
  EXPECT_EQ(limits[0].free, 4096u);
  EXPECT_EQ(limits[0].left, 0u);
}

TEST_F(CgroupMemoryTest, WhatIsAboveTheMountIsNoGroup) {
  const std::string mount = Make("mount");
  Write("memory.max", 8192);
  Write("memory.current", 4096);
  EXPECT_TRUE(MemoryLimitsAbove(mount).empty());
}

TEST_F(CgroupMemoryTest, OfThisProcess) {
  const auto own = OwnAvailableMemoryBytes();
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_GT(*own, 0u);
  for (const MemoryLimit& limit : MemoryLimitsOf(::getpid()))
    EXPECT_LE(limit.left, limit.free) << limit.folder;
}

}  // namespace
}  // namespace rekindle
