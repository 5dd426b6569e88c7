#include "daemon/access_policy.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/test_users.h"

namespace rekindle::daemon {
namespace {

constexpr uid_t kServiceUid = 700;
constexpr gid_t kAdminGroup = 50;

Caller Local(uid_t uid, gid_t gid = 9999, std::vector<gid_t> groups = {}) {
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = uid;
  caller.gid = gid;
  caller.groups = std::move(groups);
  return caller;
}

Caller Remote(uid_t uid, bool admin) {
  Caller caller;
  caller.kind = Caller::Kind::kRemote;
  caller.uid = uid;
  caller.admin_certificate = admin;
  return caller;
}

TEST(AccessPolicy, WhoMayDoWhat) {
  AccessPolicy policy(kServiceUid, kAdminGroup);
  struct Case {
    std::string who;
    Caller caller;
    bool admin, alices;
  } cases[] = {
      {"the process itself", Caller{}, true, true},
      {"root", Local(0), true, true},
      {"the service's user", Local(kServiceUid), true, true},
      {"a member by first group", Local(kBob, kAdminGroup), true, true},
      {"a member by other groups", Local(kBob, 1, {7, kAdminGroup}), true, true},
      {"the owner", Local(kAlice), false, true},
      {"another user", Local(kBob, 1, {7}), false, false},
      {"an admin certificate", Remote(kServiceUid, true), true, true},
      {"the owner's certificate", Remote(kAlice, false), false, true},
      {"another's certificate", Remote(kBob, false), false, false},
      {"root's certificate, which is not 'admin'", Remote(0, false), false, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.who);
    EXPECT_EQ(policy.IsAdmin(c.caller), c.admin);
    EXPECT_EQ(policy.MayAdminister(c.caller, "collect garbage").ok(), c.admin);
    EXPECT_EQ(policy.MayUse(c.caller, kAlice), c.alices);
    EXPECT_EQ(policy.MayUseFunction(c.caller, kAlice, "invoke", "f").ok(), c.alices);
    EXPECT_EQ(policy.MayUseImage(c.caller, kAlice, "restore", "web:1").ok(), c.alices);
    EXPECT_EQ(policy.MayUseJob(c.caller, kAlice, "checkpoint", 4711).ok(), c.alices);
  }
}

TEST(AccessPolicy, WithoutAGroupMembershipMeansNothing) {
  AccessPolicy policy(0, std::nullopt);
  EXPECT_FALSE(policy.IsAdmin(Local(kBob, 0, {0})));
}

TEST(AccessPolicy, RefusalsNameWhoWhatAndTheCure) {
  AccessPolicy policy(0, kAdminGroup);
  absl::Status status = policy.MayUseImage(Local(kBob), kAlice, "restore", "web:1");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  for (const char* word : {"web:1", "uid 1001", "uid 1000", "restore", "root", "--group"}) {
    EXPECT_NE(status.message().find(word), absl::string_view::npos) << word << " in " << status.message();
  }
  status = policy.MayUseJob(Local(kBob), kAlice, "checkpoint", 4711);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(status.message().find("process 4711"), absl::string_view::npos);
  status = policy.MayUseFunction(Local(kBob), kAlice, "invoke", "f");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(status.message().find("function 'f': uid 1001 may not invoke it"), absl::string_view::npos);
}

}  // namespace
}  // namespace rekindle::daemon
