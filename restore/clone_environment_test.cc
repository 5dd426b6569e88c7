#include "restore/clone_environment.h"

#include <linux/userfaultfd.h>
#include <sys/resource.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CloneEnvironmentTest, NamesTheEventsThatAKernelDoesNotTell) {
  const uint64_t all = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE |
                       UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  EXPECT_THAT(MissingUserfaultfdFeatures(all), IsEmpty());
  EXPECT_THAT(MissingUserfaultfdFeatures(all | UFFD_FEATURE_SIGBUS), IsEmpty());
  EXPECT_THAT(MissingUserfaultfdFeatures(all & ~uint64_t{UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_UNMAP}),
              ElementsAre("forks", "munmap"));
}

TEST(CloneEnvironmentTest, NamespaceLimits) {
  TemporaryDirectory directory = *TemporaryDirectory::Make("/tmp", "rk-environment-test.");
  auto write = [&](const char* kind, int limit) {
    const std::string path = absl::StrCat(directory.path(), "/max_", kind, "_namespaces");
    ASSERT_TRUE(WriteFileAtomically(path, absl::StrCat(limit, "\n")).ok());
  };
  for (const char* kind : {"pid", "mnt", "ipc", "net"}) write(kind, 5000);
  criu::EnvironmentCheck check = CheckNamespaceLimits(directory.path());
  EXPECT_FALSE(check.ok);
  EXPECT_THAT(check.detail, HasSubstr("max_uts_namespaces"));
  write("uts", 4000);
  check = CheckNamespaceLimits(directory.path());
  EXPECT_TRUE(check.ok) << check.detail;
  EXPECT_THAT(check.detail, HasSubstr("4000"));
  write("ipc", 3);
  check = CheckNamespaceLimits(directory.path());
  EXPECT_FALSE(check.ok);
  EXPECT_FALSE(check.required);
  EXPECT_THAT(check.detail, HasSubstr("at most 3"));
  EXPECT_THAT(check.cure, HasSubstr("user.max_ipc_namespaces"));
}

TEST(CloneEnvironmentTest, OpenFiles) {
  EXPECT_TRUE(CheckOpenFiles(RLIM_INFINITY).ok);
  EXPECT_TRUE(CheckOpenFiles(65536).ok);
  criu::EnvironmentCheck few = CheckOpenFiles(1100);
  EXPECT_FALSE(few.ok);
  EXPECT_THAT(few.detail, HasSubstr("copies"));
  criu::EnvironmentCheck fewer = CheckOpenFiles(1004);
  EXPECT_FALSE(fewer.ok);
  EXPECT_THAT(fewer.detail, HasSubstr("hook"));
  EXPECT_THAT(fewer.cure, HasSubstr("LimitNOFILE"));
}

TEST(CloneEnvironmentTest, CgroupsSayWhatIsMissing) {
  TemporaryDirectory directory = *TemporaryDirectory::Make("/tmp", "rk-environment-test.");
  const std::string mounts = absl::StrCat(directory.path(), "/mounts");
  ASSERT_TRUE(WriteFileAtomically(mounts, "proc /proc proc rw 0 0\n").ok());
  const criu::EnvironmentCheck check = CheckCgroups(mounts);
  EXPECT_FALSE(check.ok);
  EXPECT_FALSE(check.required);
  EXPECT_THAT(check.detail, HasSubstr("'memory'"));
  EXPECT_THAT(check.cure, HasSubstr("--memory"));
}

// The tests run as root on Linux with all of this; what is missing must say so.
TEST(CloneEnvironmentTest, WhatTestsRelyOnIsThere) {
  for (const criu::EnvironmentCheck& check : {CheckUserfaultfdFeatures(), CheckSandbox(),
                                              CheckNamespaceLimits("/proc/sys/user"), CheckPidfdGetfd()}) {
    EXPECT_TRUE(check.ok) << check.name << ": " << check.detail << "; " << check.cure;
  }
}

}  // namespace
}  // namespace rekindle::restore
