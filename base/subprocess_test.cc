#include "base/subprocess.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace rekindle {
namespace {

TEST(SubprocessTest, ReportsExitStatusAndSignal) {
  auto a = RunCommand({"sh", "-c", "echo hello; echo there >&2; exit 3"}, absl::Seconds(10));
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(a->exit.code, 3);
  EXPECT_EQ(a->output, "hello\nthere\n");
  auto b = RunCommand({"sh", "-c", "kill -9 $$"}, absl::Seconds(10));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->exit.signal, 9);
}

TEST(SubprocessTest, AnEnvironmentWithSomeOtherVariables) {
  ::setenv("LD_PRELOAD", "their.so", 1);
  ::setenv("COLOUR", "red", 1);
  ::setenv("COLOURS", "two", 1);
  const std::vector<std::string> environment =
      EnvironmentWith({"LD_PRELOAD=ours.so", "COLOUR=blue", "NEW=1"});
  ::unsetenv("LD_PRELOAD");
  std::map<std::string, int> counts;
  for (const std::string& variable : environment) ++counts[variable];
  for (const char* once : {"LD_PRELOAD=ours.so:their.so", "COLOUR=blue", "COLOURS=two", "NEW=1"})
    EXPECT_EQ(counts[once], 1) << once;
  EXPECT_EQ(counts["COLOUR=red"], 0);
}

TEST(SubprocessTest, AMissingProgramIsAnErrorOfStart) {
  EXPECT_EQ(RunCommand({"/no/such/program"}, absl::Seconds(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(RunCommand({"no-such-program-here"}, absl::Seconds(1)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SubprocessTest, TheChildHasOnlyTheDescriptorsItWasGiven) {
  int stray = ::open("/dev/zero", O_RDONLY);  // without O_CLOEXEC on purpose
  auto result = RunCommand({"sh", "-c", "ls /proc/$$/fd"}, absl::Seconds(10));
  ::close(stray);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->output, "0\n1\n2\n");
}

TEST(SubprocessTest, DescriptorsMayBeSwapped) {
  int a[2], b[2];
  ASSERT_EQ(::pipe2(a, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(b, O_CLOEXEC), 0);
  SubprocessOptions options;
  options.argv = {"sh", "-c", "echo to-a >&3; echo to-b >&4"};
  options.descriptors = {{a[1], 3}, {b[1], 4}};
  auto child = Subprocess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  ::close(a[1]);
  ::close(b[1]);
  char text[16] = {};
  EXPECT_EQ(::read(a[0], text, sizeof text), 5);
  EXPECT_STREQ(text, "to-a\n");
  EXPECT_EQ(::read(b[0], text, sizeof text), 5);
  EXPECT_STREQ(text, "to-b\n");
  EXPECT_TRUE(child->Wait()->ok());
  ::close(a[0]);
  ::close(b[0]);
}

TEST(SubprocessTest, TimesOutAndKillsWhatItOwns) {
  auto result = RunCommand({"sh", "-c", "exec cat /dev/zero >/dev/null"}, absl::Milliseconds(50));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace rekindle
