#include "ckpt/mounts_check.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

constexpr char kOwn[] =
    "30 23 0:40 / / rw - overlay overlay rw\n"
    "31 30 0:41 / /proc rw - proc proc rw\n"
    "32 30 0:42 / /dev rw - tmpfs tmpfs rw\n"
    "33 30 0:42 /shared /shared rw - tmpfs tmpfs rw\n";

std::string MadeFor(const std::string& theirs, const std::string& ours) {
  const MountsOfTheirs alone = MountsOfTheirsAlone(theirs, ours);
  EXPECT_THAT(alone.left, ::testing::IsEmpty());
  return alone.made;
}

TEST(MountsCheckTest, OfOursNothingIsWrong) {
  EXPECT_TRUE(CheckMounts({::getpid()}, criu::JobNamespaces(), nullptr).ok());
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
  EXPECT_EQ(MadeFor(own, own), "");
  EXPECT_EQ(MadeFor(own, own + "34 30 8:1 / /data rw - ext4 /dev/sda rw\n"), "");
  EXPECT_EQ(MadeFor(own + "34 30 0:50 / /tmp rw,nosuid - tmpfs tmpfs rw\n", own), "/tmp (tmpfs, rw,nosuid)");
  // Over another, with other rights, and another part of the same.
  EXPECT_EQ(MadeFor(own + "34 30 0:50 / /shared rw - tmpfs tmpfs rw\n", own), "/shared (tmpfs, rw)");
  EXPECT_EQ(MadeFor("30 23 0:40 / / ro - overlay overlay rw\n", own), "/ (overlay, ro)");
  EXPECT_EQ(MadeFor("33 30 0:42 /other /shared rw - tmpfs tmpfs rw\n", own), "/shared (tmpfs, rw)");
}

TEST(MountsCheckTest, WhatIsLeft) {
  const std::string own = kOwn;
  const auto left = [&](const std::string& theirs, const std::string& ours) {
    const MountsOfTheirs alone = MountsOfTheirsAlone(own + theirs, own + ours);
    return absl::StrCat(alone.made, absl::StrJoin(alone.left, " "));
  };
  EXPECT_EQ(
      left("34 30 8:1 / /data rw - ext4 /dev/sda rw\n35 30 0:50 / /run/user/7 rw - tmpfs tmpfs rw\n", ""),
      "/data /run/user/7");
  // What is over it in ours alone, and over another of ours.
  EXPECT_EQ(left("", "34 33 0:50 / /shared rw - tmpfs tmpfs rw\n"), "/shared");
  EXPECT_EQ(left("34 33 8:1 / /shared rw - ext4 /dev/sda rw\n", ""), "/shared (ext4, rw)");
  EXPECT_EQ(left("34 30 8:1 /part /data rw - ext4 /dev/sda rw\n", ""), "/data (ext4, rw)");
}

TEST(MountsCheckTest, WhatIsCovered) {
  const std::string own = kOwn;
  // By one that lies above, and by one that came later and is told of before.
  EXPECT_EQ(MadeFor("34 30 0:50 / /shared/in rw - tmpfs tmpfs rw\n" + own, own), "");
  EXPECT_EQ(MadeFor("35 33 0:50 / /shared rw - tmpfs tmpfs rw\n" + own, own), "/shared (tmpfs, rw)");
  EXPECT_EQ(MadeFor("35 33 0:50 / /shared/in rw - tmpfs tmpfs rw\n" + own, own), "/shared/in (tmpfs, rw)");
}

TEST(MountsCheckTest, HowTheyHearOfOthers) {
  const auto list = [](const std::string& root, const std::string& data) {
    return absl::StrCat("30 23 0:40 / / rw ", root, "- overlay overlay rw\n", "31 30 0:41 / /data rw ", data,
                        "- tmpfs tmpfs rw\n");
  };
  const std::string ours = list("shared:1 ", "");
  EXPECT_EQ(TieOfMounts(list("shared:1 ", ""), ours), "shared");
  EXPECT_EQ(TieOfMounts(list("shared:7 ", ""), ours), "private");
  EXPECT_EQ(TieOfMounts(list("shared:7 master:1 ", ""), ours), "slave");
  EXPECT_EQ(TieOfMounts(list("master:1 ", ""), ours), "slave");
  EXPECT_EQ(TieOfMounts(list("", ""), ours), "private");
  EXPECT_EQ(TieOfMounts(list("shared:1 ", "shared:9 "), ours), "private");
  const std::string both = list("shared:1 ", "shared:2 ");
  EXPECT_EQ(TieOfMounts(list("shared:1 ", ""), both), "private");
  EXPECT_EQ(TieOfMounts(list("master:1 ", "shared:2 "), both), "private");
  EXPECT_EQ(TieOfMounts(list("master:1 ", "master:2 "), both), "slave");
}

TEST(MountsCheckTest, WhatIsMountedHereAlone) {
  const std::string own = kOwn;
  EXPECT_THAT(MountsOfOursAlone(own, own), ::testing::IsEmpty());
  EXPECT_THAT(MountsOfOursAlone(own, own + "34 30 8:1 / /data rw - ext4 /dev/sda rw\n"),
              ::testing::ElementsAre("/data"));
}

}  // namespace
}  // namespace rekindle::ckpt
