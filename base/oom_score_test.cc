#include "base/oom_score.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"

namespace rekindle {
namespace {

// In a child: what is raised here can't always be lowered again. 0: all is as it should be; else which check
// failed.
template <typename Work>
int InChild(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OomScoreTest, AnyNumberIsTakenOnAndRead) {
  EXPECT_EQ(InChild([] {
              const int before = OwnOomScore().value_or(1000);
              for (const int score : {before, 7, 90, 999, 1000}) {
                if (score < before) continue;
                if (!TakeOnOomScore(score)) return 1;
                if (OwnOomScore() != score) return 2;
              }
              if (TakeOnOomScore(1001) || errno != EINVAL) return 3;
              return 0;
            }),
            0);
}

TEST(OomScoreTest, WhatOthersGetIsWhatThisOneHadBeforeItWasSpared) {
  EXPECT_EQ(InChild([] {
              if (!TakeOnOomScore(700)) return 1;
              SpareFromOutOfMemory();
              const int own = OwnOomScore().value_or(0);
              if (own == 700) return OomScoreForOthers() ? 2 : 0;  // it may not, and others inherit it
              if (own != -900) return 3;
              return OomScoreForOthers() == 700 ? 0 : 4;
            }),
            0);
}

}  // namespace
}  // namespace rekindle
