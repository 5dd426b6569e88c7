#include "restore/thread_placement.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/process_stat.h"
#include "base/processors.h"

namespace rekindle::restore {
namespace {

// A process with two threads that never wait.
class SpreadThreadsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto allowed = AffinityOf(0);
    ASSERT_TRUE(allowed.ok());
    allowed_ = *allowed;
    if (allowed_.size() < 2) GTEST_SKIP() << "there is one processor";
    const pid_t parent = ::getpid();
    process_ = ::fork();
    ASSERT_GE(process_, 0);
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      auto spin = [] {
        for (volatile bool go = true; go;) {
        }
      };
      std::thread other(spin);
      spin();
      ::_exit(0);
    }
    while (threads_.size() < 2) {
      threads_.clear();
      for (const auto& entry :
           std::filesystem::directory_iterator("/proc/" + std::to_string(process_) + "/task"))
        threads_.push_back(std::stoi(entry.path().filename()));
    }
  }
  void TearDown() override {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  void Put(const Processors& processors) {
    for (pid_t thread : threads_) ASSERT_TRUE(SetAffinity(thread, processors).ok());
  }
  std::set<int> Taken() const {
    std::set<int> taken;
    for (pid_t thread : threads_) taken.insert(ReadProcessStat(thread)->processor);
    return taken;
  }

  Processors allowed_;
  pid_t process_ = -1;
  std::vector<pid_t> threads_;
};

TEST_F(SpreadThreadsTest, ThreadsAtWorkOnOneProcessorGetOneEach) {
  // The kernel moves threads, too: what counts is that they were together just before and apart just after.
  bool apart = false;
  for (int tries = 0; tries < 100 && !apart; ++tries) {
    Put({*allowed_.begin()});
    Put(allowed_);
    if (Taken().size() != 1) continue;
    SpreadThreads({process_});
    apart = Taken().size() == 2;
  }
  EXPECT_TRUE(apart);
  for (pid_t thread : threads_) EXPECT_EQ(*AffinityOf(thread), allowed_);
}

TEST_F(SpreadThreadsTest, WhatIsBoundStaysWhereItIs) {
  const Processors one = {*allowed_.begin()};
  Put(one);
  SpreadThreads({process_});
  for (pid_t thread : threads_) EXPECT_EQ(*AffinityOf(thread), one);
  EXPECT_EQ(Taken(), std::set<int>{*allowed_.begin()});
}

TEST_F(SpreadThreadsTest, WhatHasEndedDoesNoHarm) { SpreadThreads({INT_MAX - 1, process_}); }

}  // namespace
}  // namespace rekindle::restore
