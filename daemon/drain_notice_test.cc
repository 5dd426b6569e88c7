#include "daemon/drain_notice.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/test_eventually.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

class DrainNoticeTest : public testing::Test {
 public:
  bool HasOne() const { return notices_ == 1; }
  bool HasTwo() const { return notices_ == 2; }

 protected:
  void Count() {
    absl::MutexLock lock(&mutex_);
    ++notices_;
  }
  bool Await(bool (DrainNoticeTest::*condition)() const) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, condition), absl::Seconds(30));
  }

  absl::Mutex mutex_;
  int notices_ = 0;
  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "notice-").value();
};

TEST_F(DrainNoticeTest, OnceForAsLongAsItIsSaid) {
  const std::string flag = absl::StrCat(folder_.path(), "/goes"),
                    asked = absl::StrCat(folder_.path(), "/asked");
  DrainNotice notice(absl::StrCat("echo >> ", asked, "; test -e ", flag), absl::Milliseconds(5),
                     [this] { Count(); });
  const auto times_asked = [&] { return ReadFile(asked).value_or("").size(); };
  const auto await_questions = [&](size_t more) {
    const size_t before = times_asked();
    ASSERT_TRUE(Eventually([&] { return times_asked() >= before + more; })) << "the command is run no more";
  };
  await_questions(2);
  ASSERT_TRUE(WriteFileAtomically(flag, "").ok());
  EXPECT_TRUE(Await(&DrainNoticeTest::HasOne));
  await_questions(3);
  EXPECT_TRUE(Await(&DrainNoticeTest::HasOne));
  ASSERT_TRUE(RemoveTree(flag).ok());
  await_questions(3);
  ASSERT_TRUE(WriteFileAtomically(flag, "").ok());
  EXPECT_TRUE(Await(&DrainNoticeTest::HasTwo));
}

TEST_F(DrainNoticeTest, ACommandThatCanNotBeRunIsNoNotice) {
  const std::string asked = absl::StrCat(folder_.path(), "/asked");
  DrainNotice notice(absl::StrCat("echo >> ", asked, "; /no/such/program"), absl::Milliseconds(5),
                     [this] { Count(); });
  ASSERT_TRUE(Eventually([&] { return ReadFile(asked).value_or("").size() >= 3; }));
  EXPECT_EQ(notices_, 0);
}

}  // namespace
}  // namespace rekindle::daemon
