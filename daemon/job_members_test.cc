#include "daemon/job_members.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Leads a session; its shell starts what `script` says and tells when it has, by making `ready`.
class JobMembersTest : public testing::Test {
 protected:
  Subprocess Start(const std::string& script, const std::string& mark) {
    SubprocessOptions options;
    options.argv = {"/bin/sh", "-c", absl::StrCat(script, "\n: > ", ready_, "\nwait\n")};
    options.environment = {"PATH=/usr/bin:/bin", mark};
    options.new_session = true;
    Subprocess started = Subprocess::Start(options).value();
    while (!PathExists(ready_) && !AwaitExit(started.pidfd(), absl::Milliseconds(1))) {
    }
    return started;
  }
  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "members-").value();
  const std::string ready_ = absl::StrCat(folder_.path(), "/ready");
  const std::string mark_ = absl::StrCat("REKINDLE_JOB_FILE=", folder_.path(), "/mine");
};

TEST_F(JobMembersTest, SessionAndMarkAndTheirDescendants) {
  // One that left the session, one that cleaned its environment.
  Subprocess job = Start("setsid sleep 1000 & env -i /bin/sleep 1000 & sleep 1000 &", mark_);
  EXPECT_EQ(JobMembers(job.pid(), mark_).size(), 4u);
  EXPECT_THAT(JobMembers(0, mark_), Contains(job.pid()));
  EXPECT_THAT(JobMembers(0, absl::StrCat(mark_, "x")), IsEmpty());
  EXPECT_THAT(JobMembers(0, mark_.substr(0, mark_.size() - 1)), IsEmpty());
  EXPECT_EQ(KillJobMembers(job.pid(), mark_), 4u);
  EXPECT_EQ(job.Wait().value().signal, SIGKILL);
  EXPECT_THAT(JobMembers(job.pid(), mark_), IsEmpty());
}

TEST_F(JobMembersTest, OrphansAreFoundAndStrangersAreNot) {
  Subprocess stranger = Start("true", "REKINDLE_JOB_FILE=/another");
  ASSERT_TRUE(RemoveTree(ready_).ok());
  Subprocess job = Start("sleep 1000 &", mark_);
  ASSERT_TRUE(job.Signal(SIGKILL).ok());
  const pid_t session = job.pid();
  ASSERT_TRUE(job.Wait().ok());
  EXPECT_THAT(JobMembers(session, mark_), AllOf(testing::SizeIs(1), Not(Contains(::getpid()))));
  EXPECT_EQ(KillJobMembers(session, mark_), 1u);
  EXPECT_TRUE(stranger.running());
  EXPECT_EQ(KillJobMembers(session, mark_), 0u);
}

TEST_F(JobMembersTest, AKilledChildThatNobodyHasSeen) {
  // The shell takes the exit status of what it waits for, and only then.
  Subprocess job = Start("sleep 1000 &", mark_);
  EXPECT_FALSE(HasKilledChild(job.pid()));
  pid_t sleeper = 0;
  for (const pid_t pid : JobMembers(job.pid(), mark_)) {
    if (pid != job.pid()) sleeper = pid;
  }
  ASSERT_GT(sleeper, 0);
  ASSERT_TRUE(job.Signal(SIGSTOP).ok());  // its parent looks no more
  ASSERT_EQ(::kill(sleeper, SIGKILL), 0);
  while (ReadProcessStat(sleeper).value().state != 'Z') ::usleep(1000);
  EXPECT_TRUE(HasKilledChild(job.pid()));
  KillJobMembers(job.pid(), mark_);
}

}  // namespace
}  // namespace rekindle::daemon
