#include "base/awaited_mount.h"

#include <unistd.h>

#include "base/file.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

class AwaitedMountTest : public ::testing::Test {
 protected:
  std::string At(const std::string& path) const {
    return AwaitedMountPoint(path, fstab_.c_str(), mounts_.c_str());
  }
  void Say(const std::string& path, const std::string& content) {
    ASSERT_TRUE(WriteFileAtomically(path, content, 0600).ok());
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "awaited-mount-test-").value();
  const std::string fstab_ = folder_.path() + "/fstab", mounts_ = folder_.path() + "/mounts";
};

TEST_F(AwaitedMountTest, WhatIsNamedAndNotThere) {
  Say(fstab_,
      "# a remark\n"
      "UUID=1 / ext4 defaults 0 1\n"
      "UUID=2 none swap sw 0 0\n"
      "UUID=3 /data/ xfs nofail 0 2\n"
      "UUID=4 /data/with\\040blank ext4 defaults 0 2\n"
      "server:/x /there nfs4 defaults 0 0\n");
  Say(mounts_, "/dev/vda / ext4 rw 0 0\nserver:/x /there nfs4 rw 0 0\n");
  EXPECT_EQ(At("/data"), "/data");
  EXPECT_EQ(At("/data/rekindle/store"), "/data");
  EXPECT_EQ(At("/data/x/../rekindle"), "/data");
  EXPECT_EQ(At("/data/with blank/store/"), "/data/with blank");
  EXPECT_EQ(At("/database/store"), "");
  EXPECT_EQ(At("/there/store"), "");
  EXPECT_EQ(At("/var/lib/rekindle/store"), "");
  Say(mounts_,
      "/dev/vda / ext4 rw 0 0\n/dev/vdb /data xfs rw 0 0\n/dev/vdc /data/with\\040blank ext4 rw 0 0\n");
  EXPECT_EQ(At("/data/rekindle"), "");
  EXPECT_EQ(At("/data/with blank/store"), "");
}

TEST_F(AwaitedMountTest, LinksAreFollowed) {
  Say(fstab_, "UUID=3 " + folder_.path() + "/disk ext4 defaults 0 2\n");
  Say(mounts_, "");
  ASSERT_EQ(::symlink("disk/rekindle", (folder_.path() + "/store").c_str()), 0);
  ASSERT_TRUE(MakeDirectories(folder_.path() + "/disk/rekindle", 0700).ok());
  EXPECT_EQ(At(folder_.path() + "/store"), folder_.path() + "/disk");
}

TEST_F(AwaitedMountTest, WithoutATableNothingIsAwaited) { EXPECT_EQ(At("/data/store"), ""); }

}  // namespace
}  // namespace rekindle
