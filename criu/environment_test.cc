#include "criu/environment.h"

#include <map>
#include <set>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::HasSubstr;

std::map<std::string, EnvironmentCheck> Checks(const absl::StatusOr<Installation>& criu) {
  std::map<std::string, EnvironmentCheck> by_name;
  for (EnvironmentCheck& check : CheckEnvironment(criu)) {
    EXPECT_FALSE(check.name.empty());
    EXPECT_FALSE(check.detail.empty()) << check.name;
    if (!check.ok) {
      EXPECT_FALSE(check.cure.empty()) << check.name;
    }
    EXPECT_TRUE(by_name.emplace(check.name, check).second) << check.name << " is there twice";
  }
  return by_name;
}

TEST(EnvironmentTest, MissingCriuIsTheFirstThingSaid) {
  std::vector<EnvironmentCheck> checks = CheckEnvironment(absl::NotFoundError("no CRIU here"));
  ASSERT_FALSE(checks.empty());
  EXPECT_EQ(checks[0].name, "criu");
  EXPECT_FALSE(checks[0].ok);
  EXPECT_TRUE(checks[0].required);
  EXPECT_THAT(checks[0].detail, HasSubstr("no CRIU here"));
}

// The tests run as root on Linux with these calls.
TEST(EnvironmentTest, WhatTestsRelyOnIsThere) {
  std::map<std::string, EnvironmentCheck> checks = Checks(absl::NotFoundError("none"));
  for (const char* name : {"cap_sys_admin", "cap_sys_ptrace", "kcmp", "io_uring"}) {
    EXPECT_TRUE(checks[name].ok) << name << ": " << checks[name].detail;
  }
  for (const char* name : {"cap_sys_resource", "cap_checkpoint_restore", "soft_dirty", "userfaultfd",
                           "ptrace_scope", "kernel_probe_cache"}) {
    EXPECT_EQ(checks.count(name), 1u) << name;
  }
  EXPECT_EQ(checks.count("criu_check"), 0u);
}

TEST(EnvironmentTest, CriusOwnCheckIsPassedOn) {
  Installation criu;
  criu.version = {4, 2, 0};
  criu.origin = "test";
  criu.command = {"/bin/sh", "-c", "echo 'Error (x.c:1): the kernel is no good'; exit 1"};
  std::map<std::string, EnvironmentCheck> checks = Checks(criu);
  EXPECT_TRUE(checks["criu"].ok);
  EXPECT_FALSE(checks["criu_check"].ok);
  EXPECT_THAT(checks["criu_check"].detail, HasSubstr("the kernel is no good"));
  EXPECT_THAT(checks["criu_check"].cure, HasSubstr("CONFIG_CHECKPOINT_RESTORE"));
}

TEST(EnvironmentTest, WhereTheLoopbackInterfaceIsDownNoOtherKernelHelps) {
  Installation criu;
  criu.version = {4, 2, 0};
  criu.origin = "test";
  criu.command = {
      "/bin/sh", "-c",
      "echo 'Error (criu/kerndat.c:732): Unable to connect a socket: Network is unreachable'; exit 1"};
  EXPECT_THAT(Checks(criu)["criu_check"].cure, HasSubstr("ip link set lo up"));
}

}  // namespace
}  // namespace rekindle::criu
