#include "ckpt/standing_job.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/test_child.h"

namespace rekindle::ckpt {
namespace {

class StandingJobTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(job_.prepared());
    inspected_.processes.push_back(ReadProcess(job_.pid()).value());
    auto session = CaptureSession::Begin(folder_.path() + "/run", inspected_);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE(StopTree(inspected_.processes).ok());
    int status = 0;
    ASSERT_EQ(::waitpid(job_.pid(), &status, WUNTRACED), job_.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    standing_ = std::make_unique<StandingJob>(inspected_.processes, nullptr,
                                              std::make_unique<CaptureSession>(*std::move(session)));
  }
  char State() const { return ReadProcess(job_.pid())->state; }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_standing_test.").value();
  TestChild job_;
  JobInspection inspected_;
  std::unique_ptr<StandingJob> standing_;
};

TEST_F(StandingJobTest, GoesOnWhenNobodyHasSaidThatItEnds) {
  EXPECT_TRUE(absl::IsAborted(CaptureSession::Begin(folder_.path() + "/run", inspected_).status()));
  standing_.reset();
  int status = 0;
  ASSERT_EQ(::waitpid(job_.pid(), &status, WCONTINUED), job_.pid());
  EXPECT_TRUE(WIFCONTINUED(status));
  EXPECT_TRUE(CaptureSession::Begin(folder_.path() + "/run", inspected_).ok());
}

TEST_F(StandingJobTest, Ends) {
  standing_->End();
  EXPECT_EQ(State(), 'Z');
  EXPECT_TRUE(standing_->GoOn().ok());  // there is nothing left to do
}

TEST_F(StandingJobTest, EndsByItsName) {
  const std::string boot = ThisMachine().value().boot_id;
  ProcessInfo another = inspected_.processes[0];
  ++another.start_ticks;
  for (const std::string& other : {JobId(boot, another), JobId("another boot", inspected_.processes[0])}) {
    EXPECT_TRUE(EndJob(other).ok());
    EXPECT_EQ(State(), 'T') << other;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(EndJob("train")));
  EXPECT_TRUE(EndJob(JobId(boot, inspected_.processes[0])).ok());
  EXPECT_EQ(State(), 'Z');
  job_.Reap();
  EXPECT_TRUE(EndJob(JobId(boot, inspected_.processes[0])).ok());
}

}  // namespace
}  // namespace rekindle::ckpt
