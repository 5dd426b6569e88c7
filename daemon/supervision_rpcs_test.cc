#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/test_child.h"
#include "daemon/rpcs.h"
#include "daemon/supervised_hold.h"
#include "daemon/supervised_record.h"
#include "daemon/test_node.h"
#include "daemon/test_users.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A job that nobody supervises, and that does not end when it is told to.
class StopJobTest : public testing::Test {
 protected:
  StopJobTest() {
    call_.caller.kind = Caller::Kind::kSelf;
    request_.set_job("stays");
    request_.set_grace_seconds(86400);
    JobRecord record;
    record.name = "stays";
    record.pid = child_.pid();
    EXPECT_TRUE(node_->jobs().Add(record, /*unique_name=*/false).ok());
  }

  absl::Status Stop() {
    v1::StopJobResponse response;
    return StopJob(*node_, call_, request_, &response);
  }

  bool Lives() const {
    const absl::StatusOr<UniqueFd> pidfd = OpenProcess(child_.pid());
    return pidfd.ok() && !AwaitExit(pidfd->get(), absl::ZeroDuration());
  }

  const TestChild child_{[] { return ::setsid() > 0 && ::signal(SIGTERM, SIG_IGN) != SIG_ERR; }};
  TestNode node_{[](NodeOptions& options) { options.daemon = true; }};
  Call call_;
  v1::StopJobRequest request_;
};

TEST_F(StopJobTest, IsLeftToItsEndWhenTheCallerGoes) {
  call_.cancelled = [] { return true; };
  const absl::Status stopped = Stop();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled) << stopped;
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("told to end"));
  EXPECT_TRUE(Lives());
}

TEST_F(StopJobTest, DoesNotKeepTheDaemonFromEnding) {
  node_->BeginStopping();
  const absl::Status stopped = Stop();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kUnavailable) << stopped;
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("rekindled ends; the job"));
  EXPECT_TRUE(Lives());
}

TEST_F(StopJobTest, IsKilledWhenItsGraceIsOver) {
  request_.set_grace_seconds(0.001);
  EXPECT_TRUE(Stop().ok());
  EXPECT_FALSE(Lives());
}

TEST_F(StopJobTest, NoGraceIsNoneAndNotTheUsualOne) {
  request_.set_grace_seconds(0);
  // Asked for as long as the grace lasts.
  call_.cancelled = [asked = 0]() mutable { return ++asked > 2; };
  const absl::Status stopped = Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
  EXPECT_FALSE(Lives());
}

TEST_F(StopJobTest, AGraceIsANumber) {
  for (const double grace : {-1.0, 86401.0, std::numeric_limits<double>::quiet_NaN()}) {
    request_.set_grace_seconds(grace);
    EXPECT_EQ(Stop().code(), absl::StatusCode::kInvalidArgument) << grace;
  }
}

// Else one request could take all descriptors of the daemon.
TEST_F(StopJobTest, OneThatIsWaitedForAThousandTimesIsWaitedForOnce) {
  v1::WaitForJobsRequest request;
  for (int i = 0; i < 1000; ++i) request.add_jobs(i % 2 == 0 ? "stays" : absl::StrCat(child_.pid()));
  const auto open_files = [] { return ListDirectory("/proc/self/fd")->size(); };
  const size_t before = open_files();
  size_t while_waiting = 0;
  call_.cancelled = [&] {
    if (while_waiting == 0) {
      while_waiting = open_files();
      EXPECT_EQ(::kill(child_.pid(), SIGKILL), 0);
    }
    return false;
  };
  std::vector<v1::JobExit> told;
  const absl::Status waited = WaitForJobs(*node_, call_, request, [&](const v1::JobExit& exit) {
    told.push_back(exit);
    return true;
  });
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_GT(while_waiting, before);
  EXPECT_LT(while_waiting, before + 10);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].name(), "stays");
}

// A supervised job that another process holds.
class JobHeldElsewhereTest : public StopJobTest {
 protected:
  void SetUp() override {
    const std::string directory = SupervisedDirectory(node_->options().store);
    ASSERT_TRUE(MakeDirectories(directory, 0700).ok());
    v1::SupervisedJobRecord record;
    record.set_name("held");
    record.set_uid(kAlice);
    record.add_argv("true");
    const absl::Status written = WriteSupervisedRecord(directory, record);
    ASSERT_TRUE(written.ok()) << written;
    absl::StatusOr<SupervisedHold> hold = SupervisedHold::Take(directory, "held");
    ASSERT_TRUE(hold.ok()) << hold.status();
    hold_.emplace(*std::move(hold));
    request_.set_job("held");
    call_.caller.kind = Caller::Kind::kLocal;
  }

  absl::Status Attach() {
    v1::AttachJobRequest request;
    request.set_job("held");
    return AttachJob(*node_, call_, request, [](const v1::JobEvent&) { return true; });
  }

  std::optional<SupervisedHold> hold_;
};

TEST_F(JobHeldElsewhereTest, ItsOwnerIsToldByWhom) {
  call_.caller.uid = kAlice;
  for (const absl::Status& told : {Stop(), Attach()}) {
    EXPECT_EQ(told.code(), absl::StatusCode::kFailedPrecondition) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr(absl::StrCat("PID ", ::getpid())));
  }
}

TEST_F(JobHeldElsewhereTest, NobodyElseIsTold) {
  call_.caller.uid = kBob;
  for (const absl::Status& refused : {Stop(), Attach()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(absl::StrCat("PID ", ::getpid()))));
  }
  // Nor where its record can't be read, so that its owner is not known.
  const std::string path = SupervisedRecordPath(SupervisedDirectory(node_->options().store), "held");
  ASSERT_TRUE(WriteFileAtomically(path, "{").ok());
  for (const absl::Status& refused : {Stop(), Attach()}) {
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(absl::StrCat("PID ", ::getpid()))));
  }
}

}  // namespace
}  // namespace rekindle::daemon
