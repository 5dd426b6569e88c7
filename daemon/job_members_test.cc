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
#include "base/test_eventually.h"
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
  JobTraits Traits(pid_t session) const {
    JobTraits traits;
    traits.session = session;
    traits.mark = mark_;
    return traits;
  }
  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "members-").value();
  const std::string ready_ = absl::StrCat(folder_.path(), "/ready");
  const std::string mark_ = absl::StrCat("REKINDLE_JOB_FILE=", folder_.path(), "/mine");
};

TEST_F(JobMembersTest, WhatWasSeenAsItsWhileItIsTheSameProcess) {
  // Nothing else tells: it has left the session and cleaned its environment.
  Subprocess job = Start("sleep 1000 &", "REKINDLE_JOB_FILE=/another");
  const ProcessStat stat = ReadProcessStat(job.pid()).value();
  JobTraits traits = Traits(0);
  EXPECT_THAT(JobMembers(traits), IsEmpty());
  traits.seen = {{job.pid(), stat.start_ticks + 1}};
  EXPECT_THAT(JobMembers(traits), IsEmpty());
  traits.seen = {{job.pid(), stat.start_ticks}};
  EXPECT_EQ(JobMembers(traits).size(), 2u);
  traits.user = ::getuid() + 1;
  EXPECT_THAT(JobMembers(traits), IsEmpty());
  traits.user = ::getuid();
  traits.others = {job.pid()};
  EXPECT_THAT(JobMembers(traits), IsEmpty());
  traits.others.clear();
  KillJobMembers(traits);
}

TEST_F(JobMembersTest, SessionAndMarkAndTheirDescendants) {
  // One that left the session, one that cleaned its environment.
  Subprocess job = Start("setsid sleep 1000 & env -i /bin/sleep 1000 & sleep 1000 &", mark_);
  EXPECT_EQ(JobMembers(Traits(job.pid())).size(), 4u);
  EXPECT_THAT(JobMembers(Traits(0)), Contains(job.pid()));
  for (const std::string& other :
       {absl::StrCat(mark_, "x"), mark_.substr(0, mark_.size() - 1), std::string()}) {
    JobTraits traits = Traits(0);
    traits.mark = other;
    EXPECT_THAT(JobMembers(traits), IsEmpty()) << other;
  }
  EXPECT_EQ(KillJobMembers(Traits(job.pid())), 4u);
  EXPECT_EQ(job.Wait().value().signal, SIGKILL);
  EXPECT_THAT(JobMembers(Traits(job.pid())), IsEmpty());
}

TEST_F(JobMembersTest, OneReadingTellsOfManyJobs) {
  const std::string other_mark = "REKINDLE_JOB_FILE=/another";
  Subprocess other = Start("setsid sleep 1000 &", other_mark);
  ASSERT_TRUE(RemoveTree(ready_).ok());
  Subprocess job = Start("setsid sleep 1000 &", mark_);
  const ProcessTable processes;
  JobTraits traits = Traits(0);
  traits.user = ::getuid();
  EXPECT_THAT(processes.Members(traits), AllOf(testing::SizeIs(2), Contains(job.pid())));
  traits.mark = other_mark;
  EXPECT_THAT(processes.Members(traits), AllOf(testing::SizeIs(2), Contains(other.pid())));
  EXPECT_TRUE(processes.Has(job.pid(), ReadProcessStat(job.pid()).value()));
  EXPECT_EQ(ProcessTable::Recent(), ProcessTable::Recent());
  EXPECT_EQ(KillJobMembers(traits), 2u);
  EXPECT_EQ(KillJobMembers(Traits(0)), 2u);
}

TEST_F(JobMembersTest, OrphansAreFoundAndStrangersAreNot) {
  Subprocess stranger = Start("true", "REKINDLE_JOB_FILE=/another");
  ASSERT_TRUE(RemoveTree(ready_).ok());
  Subprocess job = Start("sleep 1000 &", mark_);
  ASSERT_TRUE(job.Signal(SIGKILL).ok());
  const pid_t session = job.pid();
  ASSERT_TRUE(job.Wait().ok());
  EXPECT_THAT(JobMembers(Traits(session)), AllOf(testing::SizeIs(1), Not(Contains(::getpid()))));
  EXPECT_EQ(KillJobMembers(Traits(session)), 1u);
  EXPECT_TRUE(stranger.running());
  EXPECT_EQ(KillJobMembers(Traits(session)), 0u);
}

// Restored from one image, two jobs carry the same mark.
TEST_F(JobMembersTest, WhatIsAnothersCarriesTheMarkInVain) {
  Subprocess other = Start("sleep 1000 & setsid sleep 1000 &", mark_);
  ASSERT_TRUE(RemoveTree(ready_).ok());
  Subprocess job = Start("setsid sleep 1000 &", mark_);
  EXPECT_EQ(JobMembers(Traits(job.pid())).size(), 5u);
  JobTraits traits = Traits(job.pid());
  traits.others = {other.pid()};
  EXPECT_EQ(JobMembers(traits).size(), 2u);
  traits.session = 0;
  EXPECT_EQ(KillJobMembers(traits), 2u);
  EXPECT_TRUE(other.running());
  traits.others.clear();
  EXPECT_EQ(KillJobMembers(traits), 3u);
}

TEST_F(JobMembersTest, WhatIsAnotherUsersCarriesTheMarkInVain) {
  Subprocess job = Start("sleep 1000 &", mark_);
  JobTraits traits = Traits(0);
  traits.user = ::getuid() + 1;
  EXPECT_EQ(KillJobMembers(traits), 0u);
  traits.session = job.pid();
  EXPECT_EQ(JobMembers(traits).size(), 2u);
  traits = Traits(0);
  traits.user = ::getuid();
  EXPECT_EQ(KillJobMembers(traits), 2u);
}

TEST_F(JobMembersTest, ACopyInASandboxCarriesTheMarkInVain) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes PID namespaces";
  Subprocess copy = Start("exec env -u REKINDLE_JOB_FILE unshare --pid --fork --kill-child env '" + mark_ +
                              "' sh -c ': > " + ready_ + "; sleep 1000'",
                          "NONE=1");
  EXPECT_THAT(JobMembers(Traits(0)), IsEmpty());
  EXPECT_TRUE(copy.running());
  KillJobMembers({copy.pid(), "", std::nullopt, {}});
}

TEST_F(JobMembersTest, AKilledChildThatNobodyHasSeen) {
  // The shell takes the exit status of what it waits for, and only then.
  Subprocess job = Start("sleep 1000 &", mark_);
  EXPECT_FALSE(HasKilledChild(job.pid()));
  pid_t sleeper = 0;
  for (const pid_t pid : JobMembers(Traits(job.pid()))) {
    if (pid != job.pid()) sleeper = pid;
  }
  ASSERT_GT(sleeper, 0);
  ASSERT_TRUE(job.Signal(SIGSTOP).ok());  // its parent looks no more
  ASSERT_EQ(::kill(sleeper, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return ReadProcessStat(sleeper).value().state == 'Z'; }));
  EXPECT_TRUE(HasKilledChild(job.pid()));
  KillJobMembers(Traits(job.pid()));
}

}  // namespace
}  // namespace rekindle::daemon
