#include "ckpt/mounts_check.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

constexpr char kOwn[] =
    "30 23 0:40 / / rw - overlay overlay rw\n"
    "31 30 0:41 / /proc rw - proc proc rw\n"
    "32 30 0:42 / /dev rw - tmpfs tmpfs rw\n"
    "33 30 0:42 /shared /shared rw - tmpfs tmpfs rw\n";

TEST(MountsCheckTest, OfOursNothingIsWrong) { EXPECT_TRUE(CheckMounts(::getpid()).ok()); }

TEST(MountsCheckTest, WhatIsFromOutside) {
  EXPECT_EQ(MountFromOutside(kOwn), "");
  EXPECT_EQ(
      MountFromOutside(std::string(kOwn) + "34 30 8:1 /docker/1/hosts /etc/hosts rw - ext4 /dev/sda rw\n"),
      "/etc/hosts");
  EXPECT_EQ(MountFromOutside("30 23 8:1 /images/1 / rw - ext4 /dev/sda rw\n"), "");
}

}  // namespace
}  // namespace rekindle::ckpt
