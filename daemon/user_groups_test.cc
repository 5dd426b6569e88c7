#include "daemon/user_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr gid_t kFirst = 70'000;

class UserGroupsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to have a user database of its own";
    auto made = TemporaryDirectory::Make("/tmp", "user-groups-test.");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
  }

  // So many groups beside the machine's have "nobody" in them.
  void PutIntoGroups(int count) {
    auto text = ReadFile("/etc/group");
    ASSERT_TRUE(text.ok()) << text.status();
    for (int i = 0; i < count; ++i) absl::StrAppend(&*text, "rk", i, ":x:", kFirst + i, ":nobody\n");
    ASSERT_TRUE(WriteFileAtomically(path(), *text, 0644).ok());
  }
  // On a thread to which that is the machine's.
  void Inside(const std::function<void()>& work) {
    std::thread([&] {
      ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
      ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
      ASSERT_EQ(::mount(path().c_str(), "/etc/group", nullptr, MS_BIND, nullptr), 0);
      work();
    }).join();
  }
  static std::vector<gid_t> Groups(const std::optional<UserGroups>& user) {
    EXPECT_TRUE(user.has_value());
    return user.has_value() ? user->groups : std::vector<gid_t>();
  }
  std::string path() const { return directory_->path() + "/group"; }

  std::optional<TemporaryDirectory> directory_;
};

TEST_F(UserGroupsTest, AreAllHoweverMany) {
  PutIntoGroups(200);
  Inside([] {
    const std::vector<gid_t> groups = Groups(GroupsOfUser(kNobody));
    for (gid_t group = kFirst; group < kFirst + 200; ++group) EXPECT_THAT(groups, Contains(group));
    EXPECT_FALSE(GroupsOfUser(4'000'000'000).has_value());
  });
}

TEST_F(UserGroupsTest, AreKnownForSomeTime) {
  KnownGroups kept(absl::InfiniteDuration()), asked(absl::ZeroDuration());
  PutIntoGroups(1);
  Inside([&] {
    EXPECT_THAT(Groups(kept.Of(kNobody)), Contains(kFirst));
    EXPECT_THAT(Groups(asked.Of(kNobody)), Contains(kFirst));
  });
  PutIntoGroups(0);
  Inside([&] {
    EXPECT_THAT(Groups(kept.Of(kNobody)), Contains(kFirst));
    EXPECT_THAT(Groups(asked.Of(kNobody)), Not(Contains(kFirst)));
  });
}

TEST_F(UserGroupsTest, AreFoundByNameAndNumber) {
  // A directory service that is not up yet has none.
  const absl::Status none = FindGroup("rk0").status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(std::string(none.message()), AllOf(HasSubstr("group 'rk0'"), HasSubstr("groupadd")));
  PutIntoGroups(1);
  std::string members = "nobody";
  while (members.size() < size_t{200} << 10) members += ",nobody";
  ASSERT_TRUE(WriteFileAtomically(path(), *ReadFile(path()) + "many:x:80000:" + members + "\n", 0644).ok());
  Inside([] {
    EXPECT_EQ(FindGroup("rk0").value_or(0), kFirst);
    EXPECT_EQ(FindGroup("many").value_or(0), 80'000);
    EXPECT_EQ(FindGroup("80001").value_or(0), 80'001);
  });
}

}  // namespace
}  // namespace rekindle::daemon
