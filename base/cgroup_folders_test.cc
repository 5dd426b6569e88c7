#include "base/cgroup_folders.h"

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_child.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kOldMounts[] =
    "27 22 0:24 / /sys/fs/cgroup rw,relatime shared:4 - tmpfs tmpfs rw,mode=755\n"
    "28 27 0:25 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n"
    "29 27 0:26 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n"
    "30 27 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup systemd rw,xattr,name=systemd\n"
    "31 27 0:28 / /sys/fs/cgroup/unified rw,relatime shared:8 - cgroup2 cgroup2 rw\n";

TEST(CgroupFoldersTest, OfOldHierarchiesWhatDiffers) {
  EXPECT_THAT(CgroupFolders("9:name=systemd:/system.slice\n7:freezer:/slurm_n1/uid_7/job_12\n"
                            "5:cpu,cpuacct:/slurm\n3:devices:/slurm\n0::/system.slice/slurmd.service\n",
                            "9:name=systemd:/system.slice\n7:freezer:/\n5:cpu,cpuacct:/\n3:devices:/\n0::/\n",
                            kOldMounts),
              ElementsAre("/sys/fs/cgroup/freezer/slurm_n1/uid_7/job_12", "/sys/fs/cgroup/cpu,cpuacct/slurm",
                          "/sys/fs/cgroup/unified/system.slice/slurmd.service"));
}

TEST(CgroupFoldersTest, OfTheUnifiedHierarchy) {
  const char mounts[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_THAT(CgroupFolders("0::/system.slice/slurmstepd.scope/job_4/step_batch/user/task_0\n",
                            "0::/system.slice/rekindled.service\n", mounts),
              ElementsAre("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4/step_batch/user/task_0"));
  EXPECT_THAT(CgroupFolders("0::/a\n", "0::/a\n", mounts), IsEmpty());
  EXPECT_THAT(CgroupFolders("0::/\n", "0::/a\n", mounts), ElementsAre("/sys/fs/cgroup"));
}

TEST(CgroupFoldersTest, OnlyThePartThatIsMounted) {
  const char mounts[] = "30 23 0:26 /docker/one /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  EXPECT_THAT(CgroupFolders("0::/docker/one/job\n", "0::/docker/one\n", mounts),
              ElementsAre("/sys/fs/cgroup/job"));
  EXPECT_THAT(CgroupFolders("0::/docker/one\n", "0::/docker/one/x\n", mounts), ElementsAre("/sys/fs/cgroup"));
  EXPECT_THAT(CgroupFolders("0::/docker/oneself\n", "0::/docker/one\n", mounts), IsEmpty());
}

// The kernel's words for what is outside the reader's cgroup namespace.
TEST(CgroupFoldersTest, OutsideTheCgroupNamespace) {
  const char all[] = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_THAT(CgroupFolders("0::/../other\n", "0::/\n", all), IsEmpty());
  EXPECT_THAT(CgroupFolders("0::/..\n", "0::/\n", all), IsEmpty());
  EXPECT_THAT(CgroupFolders("0::/..name\n", "0::/\n", all), ElementsAre("/sys/fs/cgroup/..name"));
  const char above[] = "30 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_THAT(CgroupFolders("0::/../other\n", "0::/\n", above), ElementsAre("/sys/fs/cgroup/other"));
  EXPECT_THAT(CgroupFolders("0::/../../other\n", "0::/\n", above), IsEmpty());
}

TEST(UnreachableCgroupsTest, OfOldHierarchies) {
  const char theirs[] =
      "7:freezer:/docker/two\n5:cpu,cpuacct:/docker/two\n3:memory:/docker/two\n2:name=systemd:/two\n0::/"
      "two\n";
  const char ours[] =
      "7:freezer:/docker/two\n5:cpu,cpuacct:/docker/one\n3:memory:/docker/one\n2:name=systemd:/one\n0::/\n";
  // Nothing is mounted: what has controllers counts.
  EXPECT_THAT(UnreachableCgroups(theirs, ours, ""),
              ElementsAre("cpu,cpuacct:/docker/two", "memory:/docker/two"));
  EXPECT_THAT(UnreachableCgroups(theirs, theirs, ""), IsEmpty());
  // As docker mounts them: the container's own cgroups.
  EXPECT_THAT(
      UnreachableCgroups(theirs, ours,
                         "28 27 0:25 /docker/one /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                         "29 27 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                         "30 27 0:27 /docker/one /sys/fs/cgroup/systemd rw - cgroup systemd rw,name=systemd\n"
                         "31 27 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"),
      ElementsAre("cpu,cpuacct:/docker/two", "name=systemd:/two"));
  EXPECT_THAT(UnreachableCgroups("3:memory:/two\n0::/two\n", "3:memory:/one\n0::/one\n",
                                 "29 27 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
              IsEmpty());
}

TEST(UnreachableCgroupsTest, OfTheUnifiedHierarchyAlone) {
  EXPECT_THAT(UnreachableCgroups("0::/two\n", "0::/one\n", ""), ElementsAre(":/two"));
  EXPECT_THAT(
      UnreachableCgroups("0::/../two\n", "0::/\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
      ElementsAre(":/../two"));
  EXPECT_THAT(
      UnreachableCgroups("0::/two\n", "0::/one\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
      IsEmpty());
}

// What this process has read by system calls so far; to know it is 100 bytes or more in itself.
uint64_t BytesRead() {
  uint64_t bytes = 0;
  const std::string io = ReadFile("/proc/self/io").value();
  EXPECT_TRUE(absl::SimpleAtoi(StatusField(io, "rchar"), &bytes));
  return bytes;
}

TEST(FrozenCgroupTest, AllMountsAreReadAgainOnlyWhenThereAreOtherOnes) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting takes root";
  const TestChild child([] {
    // More of them than all else that is read.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return false;
    const auto mount_some = [] {
      for (int i = 0; i < 100; ++i) {
        if (::mount("rekindle-test", "/tmp", "tmpfs", 0, nullptr) != 0) return false;
      }
      return true;
    };
    const auto reads_them = [] {
      const uint64_t before = BytesRead(), size = ReadFile("/proc/self/mountinfo")->size();
      FrozenCgroupOf(::getpid());
      return BytesRead() - before >= 2 * size;
    };
    return mount_some() && reads_them() && !reads_them() && mount_some() && reads_them() && !reads_them();
  });
  EXPECT_TRUE(child.prepared());
}

}  // namespace
}  // namespace rekindle
