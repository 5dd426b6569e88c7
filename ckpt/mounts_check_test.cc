#include "ckpt/mounts_check.h"

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

constexpr char kOwn[] =
    "30 23 0:40 / / rw - overlay overlay rw\n"
    "31 30 0:41 / /proc rw - proc proc rw\n"
    "32 30 0:42 / /dev rw - tmpfs tmpfs rw\n"
    "33 30 0:42 /shared /shared rw - tmpfs tmpfs rw\n";

TEST(MountsCheckTest, OfOursNothingIsWrong) {
  EXPECT_TRUE(CheckMounts({::getpid()}, criu::JobNamespaces()).ok());
  EXPECT_EQ(OwnMountsOf(::getpid()), "");
}

TEST(MountsCheckTest, WhatIsFromOutside) {
  EXPECT_EQ(MountFromOutside(kOwn), "");
  EXPECT_EQ(
      MountFromOutside(std::string(kOwn) + "34 30 8:1 /docker/1/hosts /etc/hosts rw - ext4 /dev/sda rw\n"),
      "/etc/hosts");
  EXPECT_EQ(MountFromOutside("30 23 8:1 /images/1 / rw - ext4 /dev/sda rw\n"), "");
}

TEST(MountsCheckTest, WhatIsMountedOtherwise) {
  const std::string own = kOwn;
  EXPECT_EQ(MountOfTheirsAlone(own, own), "");
  EXPECT_EQ(MountOfTheirsAlone(own, own + "34 30 8:1 / /data rw - ext4 /dev/sda rw\n"), "");
  EXPECT_EQ(MountOfTheirsAlone(own + "34 30 0:50 / /tmp rw,nosuid - tmpfs tmpfs rw\n", own),
            "/tmp (tmpfs, rw,nosuid)");
  // Over another, with other rights, and another part of the same.
  EXPECT_EQ(MountOfTheirsAlone(own + "34 30 0:50 / /shared rw - tmpfs tmpfs rw\n", own),
            "/shared (tmpfs, rw)");
  EXPECT_EQ(MountOfTheirsAlone("30 23 0:40 / / ro - overlay overlay rw\n", own), "/ (overlay, ro)");
  EXPECT_EQ(MountOfTheirsAlone("33 30 0:42 /other /shared rw - tmpfs tmpfs rw\n", own),
            "/shared (tmpfs, rw)");
}

TEST(MountsCheckTest, WhatIsMountedHereAlone) {
  const std::string own = kOwn;
  EXPECT_THAT(MountsOfOursAlone(own, own), ::testing::IsEmpty());
  EXPECT_THAT(MountsOfOursAlone(own, own + "34 30 8:1 / /data rw - ext4 /dev/sda rw\n"),
              ::testing::ElementsAre("/data"));
}

}  // namespace
}  // namespace rekindle::ckpt
