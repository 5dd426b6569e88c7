#include "base/mountinfo.h"

#include <gtest/gtest.h>

#include "base/file.h"

namespace rekindle {
namespace {

TEST(MountinfoTest, Lines) {
  const std::vector<MountLine> mounts = ParseMountinfo(
      "36 35 0:98 /part /mnt rw,noatime master:1 - nfs4 server:/ rw,local_lock=none\n"
      "37 36 8:1 / /a\\040b rw - ext4 /dev/sda1 rw\n"
      "nonsense - ext4\n"
      "38 36 8:1 / /half rw\n");
  ASSERT_EQ(mounts.size(), 2);
  EXPECT_EQ(mounts[0].device, "0:98");
  EXPECT_EQ(mounts[0].root, "/part");
  EXPECT_EQ(mounts[0].point, "/mnt");
  EXPECT_EQ(mounts[0].here, "rw,noatime");
  EXPECT_EQ(mounts[0].ties, (std::vector<std::string>{"master:1"}));
  EXPECT_EQ(mounts[0].type, "nfs4");
  EXPECT_EQ(mounts[0].options, (std::vector<std::string>{"rw", "local_lock=none"}));
  EXPECT_EQ(mounts[1].point, "/a\\040b");
  EXPECT_TRUE(mounts[1].ties.empty());
  EXPECT_EQ(mounts[1].type, "ext4");
}

TEST(MountinfoTest, OfThisProcess) {
  const auto text = ReadFile("/proc/self/mountinfo");
  ASSERT_TRUE(text.ok()) << text.status();
  bool proc = false;
  for (const MountLine& mount : ParseMountinfo(*text)) proc |= mount.point == "/proc" && mount.type == "proc";
  EXPECT_TRUE(proc) << *text;
}

}  // namespace
}  // namespace rekindle
