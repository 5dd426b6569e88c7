#include "daemon/job_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/test_child.h"
#include "daemon/node.h"
#include "daemon/test_node.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kAnna = 1000, kBert = 1001;

class JobRoomTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<std::shared_ptr<void>>> Take(uid_t user, size_t count = 1) {
    Caller caller;
    caller.kind = Caller::Kind::kLocal;
    caller.uid = user;
    return TakeRoomForJobs(*node_, caller, count);
  }
  void AddJob(const std::string& name, uid_t owner, pid_t pid) {
    JobRecord record;
    record.name = name;
    record.owner = owner;
    record.pid = pid;
    ASSERT_TRUE(node_->jobs().Add(record, /*unique_name=*/false).ok());
  }

  const TestChild child_{[] { return true; }};
  TestNode node_{[](NodeOptions& options) {
    options.daemon = true;
    options.jobs_of_one = 3;
  }};
};

TEST_F(JobRoomTest, OfOneUserThoseThatRunAndThoseThatAreBeingStarted) {
  AddJob("one", kAnna, child_.pid());
  auto second = Take(kAnna), third = Take(kAnna);
  ASSERT_TRUE(second.ok() && third.ok());
  const absl::Status refused = Take(kAnna).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has 1 jobs, 2 more are being started, and 1 is wanted: one user may have 3."));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--jobs-of-one"));
  EXPECT_TRUE(Take(kBert, 3).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Take(kBert, 4).status()));
  EXPECT_TRUE(Take(kBert, 3).ok()) << "what was refused takes no room";
  EXPECT_TRUE(Take(0, 100).ok()) << "administrators may have any number";
  third = absl::UnknownError("it has started, or not");
  EXPECT_TRUE(Take(kAnna).ok());
  EXPECT_FALSE(Take(kAnna, 2).ok());
  ASSERT_TRUE(node_->jobs().SetExit(*node_->jobs().FindByName("one"), ExitState{}).ok());
  EXPECT_TRUE(Take(kAnna, 2).ok()) << "one that has ended takes none";
}

TEST_F(JobRoomTest, OneOfSeveralThatIsStartedCountsOnce) {
  auto two = Take(kAnna, 2);
  ASSERT_TRUE(two.ok()) << two.status();
  AddJob("copy-1", kAnna, child_.pid());
  EXPECT_FALSE(Take(kAnna).ok());
  (*two)[0].reset();
  EXPECT_TRUE(Take(kAnna).ok());
  EXPECT_FALSE(Take(kAnna, 2).ok());
}

}  // namespace
}  // namespace rekindle::daemon
