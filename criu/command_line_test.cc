#include "criu/command_line.h"

#include "base/file.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(CommandLineTest, PlainDump) {
  DumpOptions options;
  options.pid = 4711;
  options.images_directory = "/run/x";
  EXPECT_THAT(DumpArguments(options),
              ElementsAre("dump", "--tree", "4711", "--images-dir", "/run/x", "--log-file", "dump.log", "-v2",
                          "--no-default-config", "--libdir", kNoPlugins, "--manage-cgroups=ignore",
                          "--stream", "--leave-running", "--link-remap"));
}

TEST(CommandLineTest, DumpWithEverything) {
  DumpOptions options;
  options.pid = 1;
  options.images_directory = "/i";
  options.work_directory = "/w";
  options.stream = false;
  options.after = AfterDump::kLeaveStopped;
  options.shell_job = options.tcp_established = options.tcp_close = options.file_locks = true;
  options.external_unix_sockets = options.network_lock_skip = options.skip_in_flight = true;
  options.ghost_limit_bytes = 1 << 20;
  options.external = {"tty[1:2]", "pipe[3]"};
  options.timeout_seconds = 30;
  options.action_script = "/bin/true";
  std::vector<std::string> arguments = DumpArguments(options);
  EXPECT_THAT(arguments,
              IsSupersetOf({"--work-dir",        "/w",          "--leave-stopped",  "--shell-job",
                            "--tcp-established", "--tcp-close", "--file-locks",     "--ext-unix-sk",
                            "--network-lock",    "skip",        "--skip-in-flight", "--ghost-limit",
                            "1048576",           "--external",  "tty[1:2]",         "pipe[3]",
                            "--timeout",         "30",          "--action-script",  "/bin/true"}));
  EXPECT_THAT(arguments, Not(Contains("--stream")));
  EXPECT_THAT(arguments, Not(Contains("--leave-running")));
  options.after = AfterDump::kKill;
  EXPECT_THAT(DumpArguments(options), Not(Contains("--leave-stopped")));
}

TEST(CommandLineTest, Restore) {
  RestoreOptions options;
  options.images_directory = "/i";
  EXPECT_THAT(
      RestoreArguments(options),
      ElementsAre("restore", "--images-dir", "/i", "--log-file", "restore.log", "-v2", "--no-default-config",
                  "--libdir", kNoPlugins, "--manage-cgroups=ignore", "--restore-detached"));
  options.lazy_pages = true;
  options.inherit_fd = {{5, "tty[1:2]"}};
  EXPECT_THAT(RestoreArguments(options), IsSupersetOf({"--lazy-pages", "--inherit-fd", "fd[5]:tty[1:2]"}));
}

TEST(CommandLineTest, NoPluginsForRequestsEither) {
  EXPECT_THAT(SwrkArguments(7), ElementsAre("--no-default-config", "--libdir", kNoPlugins, "swrk", "7"));
  EXPECT_THAT(ListDirectory(kNoPlugins).value(), Each(Not(EndsWith(".so"))));
}

TEST(CommandLineTest, FullCommandPutsTheProgramFirst) {
  Installation criu;
  criu.command = {"/ld.so", "/criu"};
  EXPECT_THAT(FullCommand(criu, {"check"}), ElementsAre("/ld.so", "/criu", "check"));
}

// The real shell reads back exactly what was quoted.
TEST(CommandLineTest, ShellLineSurvivesAShell) {
  std::vector<std::string> words = {
      "printf",   "<%s>", "plain", "",          "two words", "it's", "$HOME `x` \\ \"q\"",
      "tty[1:2]", "*",    "~",     "a=b;c&d|e", "new\nline"};
  absl::StatusOr<CommandResult> result = RunCommand({"/bin/sh", "-c", ShellLine(words)}, absl::Seconds(10));
  ASSERT_TRUE(result.ok()) << result.status();
  std::string expected;
  for (size_t i = 2; i < words.size(); ++i) expected += "<" + words[i] + ">";
  EXPECT_EQ(result->output, expected);
  EXPECT_EQ(ShellLine({"criu", "dump", "--tree", "1"}), "criu dump --tree 1");
}

}  // namespace
}  // namespace rekindle::criu
