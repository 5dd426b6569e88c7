// Templates: parked programs that fork copies of themselves into sandboxes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hook/outside.h"
#include "tests/hook/programs.h"

namespace rekindle::hook {
namespace {

using ::testing::HasSubstr;

// More by hand: REKINDLE_HOOK_TEST_FORKS=1000.
int Forks() {
  const char* forks = std::getenv("REKINDLE_HOOK_TEST_FORKS");
  int count = 0;
  return forks != nullptr && absl::SimpleAtoi(forks, &count) ? count : 200;
}

class Template {
 public:
  Template(const std::vector<std::string>& command, std::vector<std::string> environment,
           const std::string& output = "/dev/null")
      : domain_(command, (environment.push_back("REKINDLE_HOLD=1"), ProgramEnvironment(environment)),
                output) {
    std::optional<Channel> peer = TakePeer(domain_.program());
    EXPECT_TRUE(peer.has_value());
    if (!peer.has_value()) return;
    channel_ = std::move(*peer);
    first_answer_ = channel_.Ask({{"type", "restored"},
                                  {"instance", "template"},
                                  {"name", "the template"},
                                  {"environment", {{"TAG", "of the template"}}},
                                  {"template", true}});
  }

  const Domain& domain() const { return domain_; }
  pid_t pid() const { return domain_.program(); }
  Channel& channel() { return channel_; }
  const Json& first_answer() const { return first_answer_; }

 private:
  Domain domain_;
  Channel channel_;
  Json first_answer_;
};

struct Copy {
  // `more`: what else the request says.
  Copy(Template* from, const std::string& instance, const std::vector<int>& cgroups = {},
       const Json& more = Json::object())
      : sandbox(from->domain(), instance) {
    auto [ours, theirs] = Channel::Pair();
    channel = std::move(ours);
    std::vector<int> descriptors = {sandbox.pidfd(), theirs.get()};
    descriptors.insert(descriptors.end(), cgroups.begin(), cgroups.end());
    Json request = {{"type", "fork"},
                    {"instance", instance},
                    {"name", "name of " + instance},
                    {"environment", {{"TAG", "tag of " + instance}}}};
    request.update(more);
    from->channel().Send(request, descriptors);
    theirs.Reset();
    answer = from->channel().Receive();
    if (answer["type"] == "forked") up = channel.Receive();
  }

  // Its PID as seen from here.
  pid_t pid() const {
    std::vector<pid_t> children = ChildrenOf(sandbox.init());
    return children.size() == 1 ? children[0] : -1;
  }

  Sandbox sandbox;
  Channel channel;
  Json answer, up;
};

// Within 30 s.
bool Ends(pid_t pid) {
  auto runs = [pid] {
    absl::StatusOr<std::string> maps = ReadFile(absl::StrCat("/proc/", pid, "/maps"));
    return maps.ok() && !maps->empty();  // a zombie has none
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (runs() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  return !runs();
}

Json Forked(const std::string& instance) {
  return {{"type", "forked"}, {"instance", instance}, {"pid", Domain::kPidInside}};
}

const Json kUp = {{"type", "up"}, {"pid", Domain::kPidInside}};
const Json kTemplateUp = {{"type", "up"}, {"pid", Domain::kPidInside}, {"version", 2}};

class TemplateTest : public ::testing::TestWithParam<Language> {
 protected:
  std::vector<std::string> Command() const { return ProgramCommand(GetParam(), folder_.file()); }
  ProgramFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Languages, TemplateTest, ::testing::Values(Language::kC, Language::kPython),
                         LanguageName);

// Copies one after the other, each of which changes all that it has, and dies.
TEST_P(TemplateTest, ForksManyCopiesAndStaysAsItWas) {
  Template from(Command(), {"IMPORT=numpy ssl"});
  ASSERT_EQ(from.first_answer(), kTemplateUp);
  const std::vector<std::string> descriptors = Descriptors(from.pid());
  std::set<std::string> randoms, numpys, ssls;
  std::optional<Json> digest;
  const int forks = Forks();
  for (int i = 0; i < forks; ++i) {
    std::string instance = absl::StrCat("copy-", i);
    Copy copy(&from, instance);
    ASSERT_EQ(copy.answer, Forked(instance));
    ASSERT_EQ(copy.up, kUp);
    Json report = copy.channel.Ask({{"type", "report"}});
    ASSERT_EQ(report["type"], "report");
    EXPECT_EQ(report["instance"], instance);
    EXPECT_EQ(report["name"], "name of " + instance);
    EXPECT_EQ(report["tag"], "tag of " + instance);
    EXPECT_EQ(report["order"], "BACD");
    EXPECT_EQ(report["pid"], Domain::kPidInside);
    EXPECT_EQ(report["session"], Domain::kPidInside);
    EXPECT_EQ(report["host"], instance);
    EXPECT_EQ(report["next"], "1001");
    EXPECT_EQ(report["count"], 0);
    if (!digest.has_value()) digest = report["digest"];
    EXPECT_EQ(report["digest"], *digest);
    if (GetParam() == Language::kC) {
      EXPECT_EQ(report["atfork"], absl::StrCat(i + 1, " ", i, " 1"));
      EXPECT_EQ(report["knows_its_cpu"], true);
      EXPECT_EQ(report["twin_follows"], true);
    } else {
      numpys.insert(report["numpy"]);
      ssls.insert(report["ssl"]);
    }
    randoms.insert(report["random"]);
    copy.channel.Send({{"type", "spoil"}});
    Json spoiled = copy.channel.Ask({{"type", "report"}});
    EXPECT_EQ(spoiled["count"], 1);
    EXPECT_EQ(spoiled["next"], "1002");
    EXPECT_NE(spoiled["digest"], *digest);
    if (::testing::Test::HasFailure()) break;
  }
  const size_t all = static_cast<size_t>(forks);
  EXPECT_EQ(randoms.size(), all);
  if (GetParam() == Language::kPython) {
    EXPECT_EQ(numpys.size(), all);
    EXPECT_EQ(ssls.size(), all);
  }
  EXPECT_EQ(Descriptors(from.pid()), descriptors);
  EXPECT_TRUE(ChildrenOf(from.pid()).empty());
  EXPECT_EQ(Namespace(from.pid(), "pid_for_children"), Namespace(from.pid(), "pid"));
}

TEST_P(TemplateTest, CopiesLiveSideBySide) {
  Template from(Command(), {});
  Copy first(&from, "first");
  Copy second(&from, "second");
  ASSERT_EQ(first.up, kUp);
  ASSERT_EQ(second.up, kUp);
  for (const char* name : {"pid", "mnt", "ipc", "uts"}) {
    std::set<std::string> namespaces = {Namespace(from.pid(), name), Namespace(first.pid(), name),
                                        Namespace(second.pid(), name)};
    EXPECT_EQ(namespaces.size(), 3u) << name;
    EXPECT_EQ(Namespace(first.pid(), name), Namespace(first.sandbox.init(), name)) << name;
  }
  EXPECT_EQ(Namespace(first.pid(), "net"), Namespace(from.pid(), "net"));
  // Offsets are each one's own, whoever reads first.
  EXPECT_EQ(first.channel.Ask({{"type", "report"}})["next"], "1001");
  EXPECT_EQ(first.channel.Ask({{"type", "report"}})["next"], "1002");
  EXPECT_EQ(second.channel.Ask({{"type", "report"}})["next"], "1001");
  // What reaches one's process group does not reach the others.
  ASSERT_EQ(::kill(-first.pid(), SIGKILL), 0);
  EXPECT_EQ(first.channel.Receive()["type"], "(end)");
  EXPECT_EQ(second.channel.Ask({{"type", "report"}})["next"], "1002");
  EXPECT_EQ(Copy(&from, "third").up, kUp);
}

TEST_P(TemplateTest, EndsWithItsChannel) {
  Template from(Command(), {});
  ASSERT_EQ(from.first_answer(), kTemplateUp);
  Copy copy(&from, "copy");
  ASSERT_EQ(copy.up, kUp);
  from.channel().Close();
  // Its init reaps it.
  absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!ChildrenOf(from.domain().init()).empty() && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(ChildrenOf(from.domain().init()).empty());
  EXPECT_EQ(copy.channel.Ask({{"type", "report"}})["next"], "1001");
}

// The first that is mounted.
std::string CgroupMount() {
  for (absl::string_view line : absl::StrSplit(ReadFile("/proc/self/mounts").value_or(""), '\n')) {
    std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() > 2 && words[2] == "cgroup2") return words[1];
  }
  return "";
}

class Cgroup {
 public:
  Cgroup() : path_(absl::StrCat(CgroupMount(), "/rekindle-hook-test-", ::getpid())) {
    EXPECT_EQ(::mkdir(path_.c_str(), 0700), 0)
        << path_ << ": this test needs a cgroup v2 hierarchy to write to";
  }
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;
  ~Cgroup() {
    // Killed processes leave it a little after they are reaped.
    absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (::rmdir(path_.c_str()) != 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_FALSE(PathExists(path_));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST_P(TemplateTest, CopiesEnterTheirCgroups) {
  Cgroup cgroup;
  Template from(Command(), {});
  UniqueFd members(::open((cgroup.path() + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  Copy copy(&from, "copy", {members.get()});
  ASSERT_EQ(copy.up, kUp);
  EXPECT_THAT(*ReadFile(absl::StrCat("/proc/", copy.pid(), "/cgroup")), HasSubstr("/rekindle-hook-test-"));
  EXPECT_THAT(*ReadFile(absl::StrCat("/proc/", from.pid(), "/cgroup")),
              ::testing::Not(HasSubstr("/rekindle-hook-test-")));
  UniqueFd unwritable(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Copy no_file(&from, "no file", {members.get(), unwritable.get()});
  ASSERT_EQ(no_file.answer["type"], "refused");
  EXPECT_THAT(no_file.answer["why"], HasSubstr("writing cgroup.procs: Bad file descriptor"));
  EXPECT_TRUE(ChildrenOf(from.pid()).empty());
}

// Forked before anybody wants it: who it is comes at the end.
TEST_P(TemplateTest, CopiesWaitToBeWanted) {
  Template from(Command(), {"IMPORT=numpy ssl"});
  std::set<std::string> randoms;
  std::vector<std::unique_ptr<Copy>> copies;
  for (int i = 0; i < 3; ++i) {
    const Json more = {{"wait", true}, {"name", "nobody"}, {"environment", {{"TAG", "none"}, {"OLD", "1"}}}};
    copies.push_back(std::make_unique<Copy>(&from, "unnamed", std::vector<int>(), more));
    ASSERT_EQ(copies.back()->answer, Forked("unnamed"));
    ASSERT_EQ(copies.back()->up, Json({{"type", "waiting"}}));
  }
  for (size_t i = copies.size(); i-- > 0;) {
    Copy& copy = *copies[i];
    const std::string instance = absl::StrCat("copy-", i);
    ASSERT_EQ(copy.channel.Ask({{"type", "go"},
                                {"instance", instance},
                                {"name", "name of " + instance},
                                {"environment", {{"TAG", "tag of " + instance}}}}),
              kUp);
    Json report = copy.channel.Ask({{"type", "report"}});
    EXPECT_EQ(report["instance"], instance);
    EXPECT_EQ(report["name"], "name of " + instance);
    EXPECT_EQ(report["tag"], "tag of " + instance);
    EXPECT_EQ(report["pid"], Domain::kPidInside);
    randoms.insert(report["random"]);
  }
  EXPECT_EQ(randoms.size(), copies.size());
}

TEST_P(TemplateTest, CopiesThatNobodyWantsEnd) {
  Template from(Command(), {});
  Copy unwanted(&from, "unwanted", {}, {{"wait", true}}), lied_to(&from, "lied to", {}, {{"wait", true}});
  ASSERT_EQ(unwanted.up, Json({{"type", "waiting"}}));
  const pid_t pid = unwanted.pid();
  ASSERT_GT(pid, 0);
  unwanted.channel.Close();
  ASSERT_TRUE(Ends(pid));
  lied_to.channel.SendText("nonsense");
  EXPECT_EQ(lied_to.channel.Receive()["type"], "(end)");
  EXPECT_EQ(Copy(&from, "copy").up, kUp);
}

// Good ranges, unmapped ones, ones beyond all addresses: what can't be touched is not.
TEST_P(TemplateTest, CopiesTouchPages) {
  Template from(Command(), {});
  std::vector<uint64_t> ranges = {0,    4096 | 1, 0x1000, 0x9000, ~uint64_t{0} - 8191, ~uint64_t{0} - 4095,
                                  8192, 4096};
  for (absl::string_view line :
       absl::StrSplit(*ReadFile(absl::StrCat("/proc/", from.pid(), "/maps")), '\n')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(line.substr(0, line.find(' ')), '-');
    uint64_t start = 0, end = 0;
    if (ends.size() != 2 || !absl::SimpleHexAtoi(ends[0], &start) || !absl::SimpleHexAtoi(ends[1], &end))
      continue;
    for (uint64_t own : {0, 1}) ranges.insert(ranges.end(), {start, end | own});
  }
  UniqueFd list(::memfd_create("touch", MFD_CLOEXEC));
  ASSERT_TRUE(WriteFully(list.get(), ranges.data(), ranges.size() * sizeof ranges[0], "list").ok());
  Copy copy(&from, "copy", {list.get()}, {{"touch", true}});
  ASSERT_EQ(copy.up, kUp);
  EXPECT_EQ(copy.channel.Ask({{"type", "report"}})["instance"], "copy");
  from.channel().Send({{"type", "fork"}, {"instance", "x"}, {"touch", true}}, {list.get(), list.get()});
  EXPECT_THAT(from.channel().Receive().value("why", ""), HasSubstr("this one 2"));
}

TEST_P(TemplateTest, RefusesWhatItCannotDo) {
  Template from(Command(), {});
  ASSERT_EQ(from.first_answer(), kTemplateUp);
  Json fork = {{"type", "fork"}, {"instance", "x"}};
  auto why = [&](const Json& request, const std::vector<int>& descriptors) {
    from.channel().Send(request, descriptors);
    Json answer = from.channel().Receive();
    EXPECT_EQ(answer["type"], "refused") << request;
    return answer.value("why", "");
  };
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(why({{"type", "dance"}}, {}), HasSubstr("not \"dance\""));
  EXPECT_THAT(why(fork, {}), HasSubstr("this one 0"));
  EXPECT_THAT(why(fork, {null.get()}), HasSubstr("this one 1"));
  EXPECT_THAT(why(fork, {null.get(), null.get()}), HasSubstr("looking at the sandbox's init"));
  EXPECT_THAT(why({{"type", "fork"}, {"instance", std::string(300, 'x')}}, {null.get(), null.get()}),
              HasSubstr("longer than 255"));
  from.channel().SendText("[]");
  EXPECT_THAT(from.channel().Receive().value("why", ""), HasSubstr("an object was expected"));
  {
    Sandbox dead(from.domain(), "dead");
    ASSERT_EQ(::kill(dead.init(), SIGKILL), 0);
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(dead.init()), &info, WEXITED | WNOWAIT), 0);
    EXPECT_NE(why(fork, {dead.pidfd(), null.get()}), "");
  }
  EXPECT_TRUE(ChildrenOf(from.pid()).empty());
  EXPECT_EQ(Namespace(from.pid(), "pid_for_children"), Namespace(from.pid(), "pid"));
  EXPECT_EQ(Copy(&from, "copy").up, kUp);
}

TEST(TemplateFilesTest, CopiesWriteToOneLog) {
  ProgramFolder folder;
  std::string log = folder.path() + "/log";
  Template from(ProgramCommand(Language::kC, folder.file()), {}, log);
  std::string expected;
  for (const char* instance : {"first", "second", "third"}) {
    Copy copy(&from, instance);
    ASSERT_EQ(copy.up, kUp);
    EXPECT_EQ(copy.channel.Ask({{"type", "print"}}), Json::object());
    absl::StrAppend(&expected, instance, "\n");
  }
  EXPECT_EQ(*ReadFile(log), expected);
}

// Until it is told who it is nothing of the program runs: it has the template's rights.
TEST(TemplateFilesTest, CopiesThatCannotBeWhoTheyAreToBeEndWithoutTheProgram) {
  ProgramFolder folder;
  const std::string log = folder.path() + "/log";
  Template from(ProgramCommand(Language::kC, folder.file()), {}, log);
  Copy lied_to(&from, "lied to", {}, {{"wait", true}}), nobody(&from, "nobody", {}, {{"wait", true}});
  Json go = {{"type", "go"}, {"environment", {{"REKINDLE_RUN_AS", "nobody"}}}};
  for (const auto& [copy, message] :
       {std::pair<Copy*, std::string>{&lied_to, "nonsense"}, {&nobody, go.dump()}}) {
    ASSERT_EQ(copy->up, Json({{"type", "waiting"}}));
    const pid_t pid = copy->pid();
    ASSERT_GT(pid, 0);
    copy->channel.SendText(message);
    EXPECT_TRUE(Ends(pid)) << message;
  }
  // One that nobody has even listened to, whose channel is reset.
  Sandbox sandbox(from.domain(), "ignored");
  auto [ours, theirs] = Channel::Pair();
  from.channel().Send({{"type", "fork"}, {"instance", "ignored"}, {"wait", true}},
                      {sandbox.pidfd(), theirs.get()});
  theirs.Reset();
  ASSERT_EQ(from.channel().Receive()["type"], "forked");
  pollfd said{ours.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&said, 1, 30'000), 1);
  const std::vector<pid_t> children = ChildrenOf(sandbox.init());
  ASSERT_EQ(children.size(), 1u);
  ours.Close();
  EXPECT_TRUE(Ends(children[0]));
  EXPECT_EQ(*ReadFile(log), "");
}

TEST(TemplateSafetyTest, AnUnsafeProgramRefuses) {
  ProgramFolder folder;
  for (const auto& [how, reason] :
       std::vector<std::pair<std::string, std::string>>{{"thread", "it has 2 threads"},
                                                        {"lock", "it holds a lock on " + folder.file()},
                                                        {"socket", "is a socket: close it before ready()"}}) {
    Template from(ProgramCommand(Language::kC, folder.file()), {"UNSAFE=" + how});
    EXPECT_EQ(from.first_answer()["type"], "refused");
    EXPECT_THAT(from.first_answer().value("why", ""), HasSubstr(reason));
    Copy copy(&from, "copy");
    EXPECT_EQ(copy.answer["type"], "refused");
    EXPECT_EQ(copy.answer["instance"], "copy");
    EXPECT_THAT(copy.answer.value("why", ""), HasSubstr(reason));
    EXPECT_EQ(copy.channel.Receive()["type"], "(end)");
  }
}

TEST(TemplateLibrariesTest, NumpyPandasAndSklearn) {
  ProgramFolder folder;
  Template from(ProgramCommand(Language::kPython, folder.file()),
                {"IMPORT=numpy pandas sklearn.linear_model"});
  ASSERT_EQ(from.first_answer(), kTemplateUp);
  std::set<std::string> numpys;
  for (const char* instance : {"one", "two"}) {
    Copy copy(&from, instance);
    ASSERT_EQ(copy.up, kUp);
    Json report = copy.channel.Ask({{"type", "report"}});
    EXPECT_EQ(report["fit"], 21.0);
    numpys.insert(report["numpy"]);
  }
  EXPECT_EQ(numpys.size(), 2u);
}

TEST(TemplateLibrariesTest, Torch) {
  ProgramFolder folder;
  Template from(ProgramCommand(Language::kPython, folder.file()), {"IMPORT=torch"});
  ASSERT_EQ(from.first_answer(), kTemplateUp);
  std::set<std::string> torches;
  for (const char* instance : {"one", "two"}) {
    Copy copy(&from, instance);
    ASSERT_EQ(copy.up, kUp);
    torches.insert(copy.channel.Ask({{"type", "report"}})["torch"]);
  }
  EXPECT_EQ(torches.size(), 2u);
}

TEST(TemplateLibrariesTest, ThreadsOfALibraryAreRefusedWithTheCure) {
  ProgramFolder folder;
  std::vector<std::string> command = ProgramCommand(Language::kPython, folder.file());
  Template with_two(command, {"IMPORT=sklearn.cluster", "OMP_NUM_THREADS=2"});
  EXPECT_EQ(with_two.first_answer()["type"], "refused");
  EXPECT_THAT(with_two.first_answer().value("why", ""), HasSubstr("it has 2 threads"));
  EXPECT_THAT(with_two.first_answer().value("why", ""), HasSubstr("set OMP_NUM_THREADS=1"));
  Template with_one(command, {"IMPORT=sklearn.cluster", "OMP_NUM_THREADS=1"});
  EXPECT_EQ(with_one.first_answer(), kTemplateUp);
}

}  // namespace
}  // namespace rekindle::hook
