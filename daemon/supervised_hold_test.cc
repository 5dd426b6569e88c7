#include "daemon/supervised_hold.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/pid_namespace.h"
#include "base/test_child.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class SupervisedHoldTest : public ::testing::Test {
 protected:
  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_hold_test.").value();
};

TEST_F(SupervisedHoldTest, OneHasItAndTheOthersAreToldWho) {
  EXPECT_TRUE(SupervisedHold::CheckIsFree(folder_.path(), "job").ok());
  absl::StatusOr<SupervisedHold> first = SupervisedHold::Take(folder_.path(), "job");
  ASSERT_TRUE(first.ok()) << first.status();
  for (const absl::Status& refused : {SupervisedHold::Take(folder_.path(), "job").status(),
                                      SupervisedHold::CheckIsFree(folder_.path(), "job")}) {
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("PID ", ::getpid())));
  }
  EXPECT_TRUE(SupervisedHold::Take(folder_.path(), "other").ok());
}

TEST_F(SupervisedHoldTest, TheHolderOnAnotherMachineIsNoProcessHere) {
  absl::StatusOr<SupervisedHold> first = SupervisedHold::Take(folder_.path(), "job");
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string path = folder_.path() + "/.job.hold";
  UniqueFd file = OpenFile(path, O_WRONLY | O_TRUNC).value();
  const std::string content = absl::StrCat(::getpid(), " node-a 0123\n");
  ASSERT_TRUE(WriteFully(file.get(), content.data(), content.size(), path).ok());
  const absl::Status refused = SupervisedHold::CheckIsFree(folder_.path(), "job");
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("node-a"));
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(absl::StrCat(::getpid()))));
}

TEST_F(SupervisedHoldTest, ItEndsWithWhoeverHasIt) {
  { ASSERT_TRUE(SupervisedHold::Take(folder_.path(), "job").ok()); }
  EXPECT_TRUE(SupervisedHold::CheckIsFree(folder_.path(), "job").ok());
  absl::StatusOr<SupervisedHold> next = SupervisedHold::Take(folder_.path(), "job");
  ASSERT_TRUE(next.ok()) << next.status();
  next->Remove();
  EXPECT_FALSE(PathExists(folder_.path() + "/.job.hold"));
  EXPECT_TRUE(SupervisedHold::Take(folder_.path(), "job").ok());
}

TEST_F(SupervisedHoldTest, AChildThatIsJustBeingMadeDoesNotKeepIt) {
  absl::StatusOr<SupervisedHold> given_up = SupervisedHold::Take(folder_.path(), "job");
  absl::StatusOr<SupervisedHold> removed = SupervisedHold::Take(folder_.path(), "other");
  ASSERT_TRUE(given_up.ok() && removed.ok()) << given_up.status() << removed.status();
  const TestChild child;  // as one that has not begun its program: it has what we have open
  ASSERT_TRUE(child.prepared());
  { const SupervisedHold ends_here = *std::move(given_up); }
  removed->Remove();
  for (const char* name : {"job", "other"}) {
    EXPECT_TRUE(SupervisedHold::CheckIsFree(folder_.path(), name).ok()) << name;
    EXPECT_TRUE(SupervisedHold::Take(folder_.path(), name).ok()) << name;
  }
}

TEST_F(SupervisedHoldTest, AChildOfOneThatDiedIsWaitedFor) {
  // The holder, and its child, whose start takes its time.
  const TestChild holder([this] {
    static absl::StatusOr<SupervisedHold> hold = SupervisedHold::Take(folder_.path(), "job");
    const pid_t child = ::fork();
    if (child == 0) {
      absl::SleepFor(absl::Milliseconds(100));
      ::_exit(0);
    }
    return hold.ok() && child > 0;
  });
  ASSERT_TRUE(holder.prepared());
  EXPECT_TRUE(absl::IsAlreadyExists(SupervisedHold::CheckIsFree(folder_.path(), "job")));
  holder.Kill();
  ASSERT_TRUE(holder.AwaitEnd());
  EXPECT_TRUE(SupervisedHold::CheckIsFree(folder_.path(), "job").ok());
  EXPECT_TRUE(SupervisedHold::Take(folder_.path(), "job").ok());
}

TEST_F(SupervisedHoldTest, TheHolderInAnotherContainerIsNoProcessHere) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root for a PID namespace";
  // The first of a namespace has it there, as process 1.
  const TestChild outside([this] {
    if (::unshare(CLONE_NEWPID) != 0) return false;
    static const TestChild inside([this] {
      static absl::StatusOr<SupervisedHold> hold = SupervisedHold::Take(folder_.path(), "job");
      // Its /proc is still that of the test, where it has no such number.
      return hold.ok() && ::getpid() == 1;
    });
    return inside.prepared();
  });
  ASSERT_TRUE(outside.prepared());
  for (const absl::Status& refused : {SupervisedHold::Take(folder_.path(), "job").status(),
                                      SupervisedHold::CheckIsFree(folder_.path(), "job")}) {
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("container"), Not(HasSubstr("kill"))));
  }
}

TEST_F(SupervisedHoldTest, AProcessThatHasTheNumberOfAnEarlierOneIsNotTheHolder) {
  const absl::StatusOr<SupervisedHold> hold = SupervisedHold::Take(folder_.path(), "job");
  ASSERT_TRUE(hold.ok()) << hold.status();
  const std::string path = folder_.path() + "/.job.hold";
  const std::string content =
      absl::StrCat(::getpid(), " ", ThisHostName(), " ", ThisMachineId(), " ", OurPidNamespace(), " 1\n");
  const UniqueFd file = OpenFile(path, O_WRONLY | O_TRUNC).value();
  ASSERT_TRUE(WriteFully(file.get(), content.data(), content.size(), path).ok());
  const absl::Status refused = SupervisedHold::CheckIsFree(folder_.path(), "job");
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(absl::StrCat(::getpid()))));
}

TEST_F(SupervisedHoldTest, OneThatIsNotSeenIsNotNamed) {
  const TestChild gone;
  gone.Kill();
  ASSERT_TRUE(gone.AwaitEnd());
  const UniqueFd held = LockFile(folder_.path() + "/.job.hold", LOCK_EX | LOCK_NB).value();
  const std::string content = absl::StrCat(gone.pid(), " here \n");
  ASSERT_TRUE(WriteFully(held.get(), content.data(), content.size(), "it").ok());
  for (const absl::Status& refused : {SupervisedHold::Take(folder_.path(), "job").status(),
                                      SupervisedHold::CheckIsFree(folder_.path(), "job")}) {
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("kill")));
  }
}

TEST_F(SupervisedHoldTest, OneThatHasNotSaidWhoItIsIsNotNamed) {
  const UniqueFd held = LockFile(folder_.path() + "/.job.hold", LOCK_EX | LOCK_NB).value();
  for (const absl::Status& refused : {SupervisedHold::Take(folder_.path(), "job").status(),
                                      SupervisedHold::CheckIsFree(folder_.path(), "job")}) {
    EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("PID")));
  }
}

}  // namespace
}  // namespace rekindle::daemon
