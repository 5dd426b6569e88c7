// The checks look at the process they run in, so a program is brought into each state and says what they
// find.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::HasSubstr;

std::string Probe(const std::string& state) {
  absl::StatusOr<CommandResult> result = RunCommand({REKINDLE_HOOK_SAFETY_PROBE, state}, absl::Seconds(20));
  if (!result.ok()) return std::string(result.status().message());
  if (!result->exit.ok()) return absl::StrCat(result->exit.ToString(), ": ", result->output);
  return std::string(absl::StripSuffix(result->output, "\n"));
}

TEST(ForkSafetyTest, AllowsWhatCopiesCanShare) {
  for (const char* state : {"harmless", "deleted-readonly", "terminal-0", "pipe-0"}) {
    EXPECT_EQ(Probe(state), "safe") << state;
  }
}

TEST(ForkSafetyTest, RefusesWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> kUnsafe = {
      {"thread", "it has 2 threads"},
      {"openblas", "libraries that start threads: set OPENBLAS_NUM_THREADS=1 before it starts"},
      {"child", "child processes"},
      {"alarm", "ITIMER_REAL"},
      {"itimer-virtual", "ITIMER_VIRTUAL"},
      {"itimer-prof", "ITIMER_PROF"},
      {"posix-timer", "POSIX timer"},
      {"listening", "is a socket"},
      {"unix-socket", "is a socket"},
      {"eventfd", "eventfd"},
      {"epoll", "eventpoll"},
      {"timerfd", "timerfd"},
      {"signalfd", "signalfd"},
      {"inotify", "inotify"},
      {"pidfd", "pidfd"},
      {"io_uring", "io_uring"},
      {"pipe", "is a pipe"},
      {"terminal", "is the device /dev/pts/"},
      {"namespace", "net:["},
      {"message-queue", "is a message queue (/rekindle-probe-"},
      {"memfd", "/memfd:probe (deleted) (descriptor 3) is open for writing"},
      {"deleted-file", "(deleted) (descriptor 3) is open for writing"},
      {"shared-anonymous", "anonymous shared memory"},
      {"shared-file", "is mapped shared and writable"},
      {"shared-segment", "/SYSV00000000 (deleted) is mapped shared and writable"},
      {"flock", "it holds a lock on"},
      {"record-lock", "it holds a lock on"},
      {"nvidia", "it uses a GPU"},
  };
  for (const auto& [state, why] : kUnsafe) EXPECT_THAT(Probe(state), HasSubstr(why)) << state;
}

}  // namespace
}  // namespace rekindle
