#include "restore/thread_placement.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <set>
#include <thread>
#include <vector>

#include "base/process_stat.h"
#include "base/processors.h"

namespace rekindle::restore {
namespace {

// Two processes that never wait, of a program without threads of its own.
class SpreadThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto allowed = AffinityOf(0);
    ASSERT_TRUE(allowed.ok());
    allowed_ = *allowed;
    if (allowed_.size() < 2) GTEST_SKIP() << "there is one processor";
    const pid_t parent = ::getpid();
    for (int i = 0; i < 2; ++i) {
      const pid_t pid = ::fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() == parent) ::execl("/bin/sh", "sh", "-c", "while :; do :; done", nullptr);
        ::_exit(1);
      }
      processes_.push_back(pid);
    }
    for (pid_t pid : processes_) {
      while (ReadProcessStat(pid)->name != "sh") std::this_thread::yield();
    }
  }
  void TearDown() override {
    for (pid_t pid : processes_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  void Put(const Processors& processors) {
    for (pid_t thread : processes_) ASSERT_TRUE(SetAffinity(thread, processors).ok());
  }
  std::set<int> Taken() const {
    std::set<int> taken;
    for (pid_t thread : processes_) taken.insert(ReadProcessStat(thread)->processor);
    return taken;
  }

  Processors allowed_;
  std::vector<pid_t> processes_;
};

TEST_F(SpreadThreadsTest, ThreadsAtWorkOnOneProcessorGetOneEach) {
  // The kernel moves threads, too: what counts is that they were together just before and apart just after.
  bool apart = false;
  for (int tries = 0; tries < 100 && !apart; ++tries) {
    Put({*allowed_.begin()});
    Put(allowed_);
    if (Taken().size() != 1) continue;
    SpreadThreads(processes_);
    apart = Taken().size() == 2;
  }
  EXPECT_TRUE(apart);
  for (pid_t thread : processes_) EXPECT_EQ(*AffinityOf(thread), allowed_);
}

TEST_F(SpreadThreadsTest, WhatIsBoundStaysWhereItIs) {
  const Processors one = {*allowed_.begin()};
  Put(one);
  SpreadThreads(processes_);
  for (pid_t thread : processes_) EXPECT_EQ(*AffinityOf(thread), one);
  EXPECT_EQ(Taken(), std::set<int>{*allowed_.begin()});
}

TEST_F(SpreadThreadsTest, WhatHasEndedDoesNoHarm) { SpreadThreads({INT_MAX - 1, processes_[0]}); }

}  // namespace
}  // namespace rekindle::restore
