#include "base/cgroup_memory.h"

#include <sys/stat.h>

#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

class CgroupMemoryTest : public testing::Test {
 protected:
  std::string Make(const std::string& folder) {
    const std::string path = folder_.path() + folder;
    EXPECT_TRUE(MakeDirectories(path).ok());
    return path;
  }
  static void Write(const std::string& file, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(file, text).ok());
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "cgroups-").value();
};

TEST_F(CgroupMemoryTest, OfTheUnifiedHierarchyTheNarrowestCounts) {
  const std::string around = Make("/pod"), own = Make("/pod/job");
  Write(own + "/memory.max", "max\n");
  Write(own + "/memory.current", "700\n");
  EXPECT_EQ(RoomInCgroups({own}), UINT64_MAX);
  Write(around + "/memory.max", "1000\n");
  Write(around + "/memory.current", "800\n");
  Write(around + "/memory.stat", "anon 500\ninactive_file 100\nactive_file 50\n");
  EXPECT_EQ(RoomInCgroups({own}), 300u);
  Write(own + "/memory.max", "900\n");
  EXPECT_EQ(RoomInCgroups({own}), 200u);
  Write(own + "/memory.current", "950\n");
  EXPECT_EQ(RoomInCgroups({own}), 0u);
}

TEST_F(CgroupMemoryTest, OfOldHierarchies) {
  const std::string memory = Make("/memory/job"), other = Make("/freezer/job");
  Write(memory + "/memory.limit_in_bytes", "1000\n");
  Write(memory + "/memory.usage_in_bytes", "900\n");
  Write(memory + "/memory.stat", "inactive_file 1\ntotal_inactive_file 400\n");
  EXPECT_EQ(RoomInCgroups({other, memory}), 500u);
  EXPECT_EQ(RoomInCgroups({other}), UINT64_MAX);
}

}  // namespace
}  // namespace rekindle
