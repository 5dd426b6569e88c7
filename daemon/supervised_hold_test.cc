#include "daemon/supervised_hold.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

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

}  // namespace
}  // namespace rekindle::daemon
