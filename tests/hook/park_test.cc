// Programs that park, and are let go on or woken as copies, by hand and by CRIU.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "criu/command_line.h"
#include "criu/installation.h"
#include "criu/restore_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hook/outside.h"
#include "tests/hook/programs.h"

namespace rekindle::hook {
namespace {

using ::testing::HasSubstr;

class RunningProgram {
 public:
  RunningProgram(std::vector<std::string> argv, std::vector<std::string> environment) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    output_.Reset(ends[0]);
    UniqueFd input(ends[1]);
    SubprocessOptions options;
    options.argv = std::move(argv);
    options.environment = std::move(environment);
    options.descriptors = {{input.get(), 1}, {input.get(), 2}};
    options.new_session = true;
    absl::StatusOr<Subprocess> process = Subprocess::Start(options);
    EXPECT_TRUE(process.ok()) << process.status();
    if (process.ok()) process_ = std::move(*process);
  }

  pid_t pid() const { return process_.pid(); }
  // Exit state and output, once it has ended.
  std::string End() {
    absl::StatusOr<ExitState> exit = process_.WaitFor(absl::Seconds(30));
    if (!exit.ok()) return std::string(exit.status().message());
    std::string text(1 << 16, '\0');
    ssize_t length = ::read(output_.get(), text.data(), text.size());
    text.resize(length > 0 ? static_cast<size_t>(length) : 0);
    return absl::StrCat(exit->ToString(), ": ", text);
  }

 private:
  UniqueFd output_;
  Subprocess process_;
};

Json Restored(const std::string& instance, const std::string& tag) {
  return {{"type", "restored"},
          {"instance", instance},
          {"name", "copy " + instance},
          {"environment", {{"TAG", tag}}},
          {"template", false}};
}

class ParkTest : public ::testing::TestWithParam<Language> {
 protected:
  std::vector<std::string> Command() const { return ProgramCommand(GetParam(), folder_.file()); }
  std::vector<std::string> Held(std::vector<std::string> more = {}) const {
    more.push_back("REKINDLE_HOLD=1");
    return ProgramEnvironment(more);
  }
  // Runs the program under `shell_line`, in which "$@" stands for it.
  std::vector<std::string> Under(const std::string& shell_line) const {
    std::vector<std::string> command = {"/bin/bash", "-c", shell_line, "bash"};
    for (const std::string& word : Command()) command.push_back(word);
    return command;
  }

  ProgramFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Languages, ParkTest, ::testing::Values(Language::kC, Language::kPython),
                         LanguageName);

TEST_P(ParkTest, ReturnsAtOnceWhenNotHeld) {
  RunningProgram program(Command(), ProgramEnvironment({}));
  EXPECT_EQ(program.End(), "exit status 0: not held \n");
}

TEST_P(ParkTest, GoesOnWhenReleased) {
  RunningProgram program(Command(), Held());
  std::optional<Channel> peer = TakePeer(program.pid());
  ASSERT_TRUE(peer.has_value());
  peer->Send({{"type", "continue"}});
  EXPECT_EQ(program.End(), "exit status 0: continued BA\n");
}

TEST_P(ParkTest, GoesOnAtTheEndOfTheChannel) {
  RunningProgram program(Command(), Held());
  std::optional<Channel> peer = TakePeer(program.pid());
  ASSERT_TRUE(peer.has_value());
  ASSERT_EQ(::shutdown(peer->fd(), SHUT_WR), 0);
  EXPECT_EQ(program.End(), "exit status 0: continued BA\n");
}

TEST_P(ParkTest, SaysWhatItDoesNotUnderstand) {
  for (const auto& [message, why] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense", "an object was expected"},
           {R"({"type":"what"})", "its type is \"what\""},
           {R"({"type":"restored","environment":{"A=B":"C"}})", "\"A=B\" is no name"},
           {std::string(70'000, 'x'), "Message too long"}}) {
    RunningProgram program(Command(), Held());
    std::optional<Channel> peer = TakePeer(program.pid());
    ASSERT_TRUE(peer.has_value());
    peer->SendText(message);
    std::string end = program.End();
    EXPECT_THAT(end, HasSubstr("woken with a message that it does not understand")) << message.substr(0, 80);
    EXPECT_THAT(end, HasSubstr(why));
  }
}

TEST_P(ParkTest, RaisesALowLimit) {
  RunningProgram program(Under("ulimit -Sn 256; ulimit -Hn 2048; exec \"$@\""), Held());
  std::optional<Channel> peer = TakePeer(program.pid());
  ASSERT_TRUE(peer.has_value());
  peer->Send({{"type", "continue"}});
  EXPECT_EQ(program.End(), "exit status 0: continued BA\n");
}

// The channel of the last time is open until the next one is there.
TEST_P(ParkTest, RaisesALowLimitForTheNextTimeToo) {
  RunningProgram program(Under("ulimit -Sn 256; ulimit -Hn 2048; exec \"$@\""), Held());
  std::optional<Channel> channel = TakePeer(program.pid());
  ASSERT_TRUE(channel.has_value());
  EXPECT_EQ(channel->Ask(Restored("one", "new"))["type"], "up");
  EXPECT_EQ(channel->Ask({{"type", "again"}})["type"], "ready");
  EXPECT_EQ(channel->Receive()["type"], "(end)");
  channel = TakePeer(program.pid());
  ASSERT_TRUE(channel.has_value()) << program.End();
  EXPECT_EQ(channel->Ask(Restored("two", "newer"))["type"], "up");
  channel->Send({{"type", "exit"}});
  EXPECT_EQ(program.End(), "exit status 7: ");
}

TEST_P(ParkTest, SaysWhenTheLimitCannotBeRaised) {
  RunningProgram program(Under("ulimit -n 512; exec \"$@\""), Held());
  EXPECT_THAT(program.End(),
              HasSubstr("this process may open 512 at most: raise the hard limit (ulimit -Hn)"));
}

TEST_P(ParkTest, SaysWhenADescriptorIsTaken) {
  // Python's own programs have no descriptor that is inherited; the shell's is.
  RunningProgram program(Under("exec 1001</dev/null; exec \"$@\""), Held());
  EXPECT_THAT(program.End(), HasSubstr("the program uses descriptor 1001"));
}

TEST_P(ParkTest, WakesAsACopyAndParksAgain) {
  RunningProgram program(Command(), Held({"TAG=old"}));
  std::optional<Channel> channel = TakePeer(program.pid());
  ASSERT_TRUE(channel.has_value());
  Json up = channel->Ask(Restored("one", "new \"ä\"\n"));
  EXPECT_EQ(up, (Json{{"type", "up"}, {"pid", program.pid()}}));
  if (GetParam() == Language::kPython) {
    Json report = channel->Ask({{"type", "report"}});
    EXPECT_EQ(report["instance"], "one");
    EXPECT_EQ(report["name"], "copy one");
    EXPECT_EQ(report["tag"], "new \"ä\"\n");
    EXPECT_EQ(report["order"], "BACD");
    EXPECT_EQ(report["next"], "1001");
  }
  // The old channel ends when the process is parked again, with a new one.
  EXPECT_EQ(channel->Ask({{"type", "again"}}), (Json{{"type", "ready"}, {"after_restore", 1}}));
  EXPECT_EQ(channel->Receive()["type"], "(end)");
  channel = TakePeer(program.pid());
  ASSERT_TRUE(channel.has_value());
  Json second = Restored("two", "newer");
  second["environment"]["TZ"] = "ABC-5";
  EXPECT_EQ(channel->Ask(second), up);
  Json report = channel->Ask({{"type", "report"}});
  EXPECT_EQ(report["zone"], "ABC");
  EXPECT_EQ(report["instance"], "two");
  EXPECT_EQ(report["tag"], "newer");
  EXPECT_EQ(report["order"], "BACDBACD");
  channel->Send({{"type", "exit"}});
  EXPECT_EQ(program.End(), "exit status 7: ");
}

// What is meant for the hook alone: where output goes, and whose the copy is.
TEST_P(ParkTest, WakesWithItsOutputAndItsUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give up its rights";
  const std::string output = absl::StrCat(folder_.path(), "/output");
  ASSERT_TRUE(WriteFileAtomically(output, "before\n").ok());
  RunningProgram program(Command(), Held({"TAG=old"}));
  std::optional<Channel> channel = TakePeer(program.pid());
  ASSERT_TRUE(channel.has_value());
  Json restored = Restored("one", "new");
  restored["environment"]["REKINDLE_OUTPUT"] = output;
  restored["environment"]["REKINDLE_RUN_AS"] = "65534:65533:65532,65531";
  EXPECT_EQ(channel->Ask(restored)["type"], "up");
  // The file is root's alone: it was opened before.
  EXPECT_EQ(channel->Ask({{"type", "print"}}), Json::object());
  EXPECT_EQ(ReadFile(output).value_or("none"), "before\none\n");
  const std::string status = ReadFile(absl::StrCat("/proc/", program.pid(), "/status")).value_or("");
  EXPECT_THAT(status, HasSubstr("Uid:\t65534\t65534\t65534\t65534\n"));
  EXPECT_THAT(status, HasSubstr("Gid:\t65533\t65533\t65533\t65533\n"));
  EXPECT_THAT(status, HasSubstr("Groups:\t65531 65532 \n"));
  EXPECT_THAT(status, HasSubstr("CapEff:\t0000000000000000\n"));
  // It is that user's to look at, and to take an image of.
  struct stat info;
  ASSERT_EQ(::stat(absl::StrCat("/proc/", program.pid(), "/environ").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  channel->Send({{"type", "exit"}});
  EXPECT_EQ(program.End(), "exit status 7: ");
}

TEST_P(ParkTest, DoesNotWakeAsNobodyKnowsWhom) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"REKINDLE_RUN_AS", "root"},
                                                        {"REKINDLE_RUN_AS", "65534"},
                                                        {"REKINDLE_OUTPUT", "/nowhere/output"}}) {
    RunningProgram program(Command(), Held());
    std::optional<Channel> channel = TakePeer(program.pid());
    ASSERT_TRUE(channel.has_value());
    Json restored = Restored("one", "new");
    restored["environment"][name] = value;
    EXPECT_EQ(channel->Ask(restored)["type"], "(end)") << name << "=" << value;
    EXPECT_THAT(program.End(), HasSubstr(value));
  }
}

// One image, two copies: each gets its own channel at both descriptors, and the read that was under way when
// CRIU froze the process resumes on it. The original goes on too.
TEST_P(ParkTest, CriuRestoresItTwice) {
  absl::StatusOr<criu::Installation> installation = criu::FindCriu();
  ASSERT_TRUE(installation.ok()) << installation.status();
  RunningProgram program(Command(), Held({"IMPORT=numpy ssl"}));
  ASSERT_TRUE(WaitUntilParked(program.pid()));
  // What the restored copies have for output: nobody reads from the pipe.
  std::string output, first, second;
  for (const std::string& descriptor : Descriptors(program.pid())) {
    if (absl::StartsWith(descriptor, "1 -> ")) output = descriptor.substr(5);
    if (absl::StartsWith(descriptor, "1000 -> ")) first = descriptor.substr(8);
    if (absl::StartsWith(descriptor, "1001 -> ")) second = descriptor.substr(8);
  }
  criu::DumpOptions dump;
  dump.pid = program.pid();
  dump.images_directory = folder_.path();
  dump.stream = false;
  dump.external = {output};
  absl::StatusOr<CommandResult> dumped =
      RunCommand(criu::FullCommand(*installation, criu::DumpArguments(dump)), absl::Seconds(60));
  ASSERT_TRUE(dumped.ok()) << dumped.status();
  ASSERT_TRUE(dumped->exit.ok()) << dumped->output
                                 << ReadFile(folder_.path() + "/dump.log").value_or("no log");
  std::optional<Channel> original = TakePeer(program.pid());
  ASSERT_TRUE(original.has_value());
  original->Send({{"type", "continue"}});
  EXPECT_EQ(program.End(), "exit status 0: continued BA\n");

  UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  std::vector<Json> reports;
  for (const std::string instance : {"one", "two"}) {
    auto [channel, theirs] = Channel::Pair();
    UniqueFd again(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 3));
    channel.Send(Restored(instance, "tag of " + instance));
    criu::RestoreOptions options;
    options.images_directory = folder_.path();
    options.inherit_fd = {{theirs.get(), first}, {again.get(), second}, {null.get(), output}};
    absl::StatusOr<criu::RestoredTree> tree =
        criu::RunRestore(*installation, options, criu::JobNamespaces(), nullptr, -1);
    ASSERT_TRUE(tree.ok()) << tree.status();
    theirs.Reset();
    again.Reset();
    EXPECT_EQ(channel.Receive(), (Json{{"type", "up"}, {"pid", tree->root}}));
    std::vector<std::string> open_files = Descriptors(tree->root);
    for (const std::string& descriptor : open_files) EXPECT_FALSE(absl::StartsWith(descriptor, "1001 "));
    Json report = channel.Ask({{"type", "report"}});
    EXPECT_EQ(report["instance"], instance);
    EXPECT_EQ(report["tag"], "tag of " + instance);
    EXPECT_EQ(report["order"], "BACD");
    EXPECT_EQ(report["next"], "1001");
    reports.push_back(report);
    channel.Send({{"type", "exit"}});
    int status = 0;
    EXPECT_EQ(::waitpid(tree->root, &status, 0), tree->root);
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
  EXPECT_EQ(reports[0]["digest"], reports[1]["digest"]);
  for (const char* random : {"random", "numpy", "ssl"}) {
    if (!reports[0].contains(random)) continue;
    EXPECT_NE(reports[0][random], reports[1][random]) << random;
  }
}

}  // namespace
}  // namespace rekindle::hook
