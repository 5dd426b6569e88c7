#include "base/local_locks.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace rekindle {
namespace {

std::string OptionIn(const std::string& type, const std::string& options) {
  return LocalLocksOptionIn(absl::StrCat("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,nolock\n",
                                         "36 22 0:98 / /mnt/store rw,noatime shared:7 master:1 - ", type,
                                         " server:/store ", options, "\n"),
                            "0:98");
}

TEST(LocalLocks, OfFileSystemsThatMachinesShare) {
  EXPECT_EQ(OptionIn("nfs", "rw,vers=3,nolock,local_lock=all,addr=10.0.0.1"), "nolock");
  EXPECT_EQ(OptionIn("nfs4", "rw,vers=4.2,local_lock=flock"), "local_lock=flock");
  EXPECT_EQ(OptionIn("nfs", "rw,vers=3,local_lock=all"), "local_lock=all");
  EXPECT_EQ(OptionIn("lustre", "rw,checksum,localflock"), "localflock");
  EXPECT_EQ(OptionIn("cifs", "rw,vers=3.1.1,nobrl"), "nobrl");
  EXPECT_EQ(OptionIn("smb3", "rw,nobrl"), "nobrl");
}

TEST(LocalLocks, NoneWhereLocksHoldOrNobodyElseIs) {
  EXPECT_EQ(OptionIn("nfs4", "rw,vers=4.2,local_lock=none"), "");
  // That of fcntl() alone.
  EXPECT_EQ(OptionIn("nfs", "rw,vers=3,local_lock=posix"), "");
  EXPECT_EQ(OptionIn("lustre", "rw,flock"), "");
  EXPECT_EQ(OptionIn("ext4", "rw,nolock"), "");
  EXPECT_EQ(LocalLocksOptionIn("", "0:98"), "");
  EXPECT_EQ(LocalLocksOptionIn("36 22 0:98 / /mnt\nnonsense - \n", "0:98"), "");
  EXPECT_EQ(LocalLocksOption("/proc"), "");
  EXPECT_EQ(LocalLocksOption("/no/such/file"), "");
}

}  // namespace
}  // namespace rekindle
