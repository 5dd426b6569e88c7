#include "daemon/job_launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "daemon/job_reaper.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

class JobLauncherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "job-launcher-test.");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    ASSERT_EQ(::chmod(directory_->path().c_str(), 0777), 0);
  }
  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
  LaunchOptions Shell(const std::string& script) const {
    LaunchOptions options;
    options.argv = {"sh", "-c", script};
    options.environment = {"PATH=/usr/bin:/bin", "COLOUR=green"};
    options.working_directory = directory_->path();
    options.log = Path("log");
    return options;
  }
  // Runs it to its end.
  ExitState Run(const LaunchOptions& options,
                const std::function<absl::Status(pid_t)>& before_command = nullptr) {
    auto pid = LaunchJob(options, nullptr, before_command);
    EXPECT_TRUE(pid.ok()) << pid.status();
    if (!pid.ok()) return {};
    auto end = reaper_.Adopt(*pid, {});
    EXPECT_TRUE(end.ok()) << end.status();
    std::optional<ExitState> exit = (*end)->WaitFor(kLong);
    EXPECT_TRUE(exit.has_value());
    return exit.value_or(ExitState{});
  }
  std::string Log() const { return ReadFile(Path("log")).value_or("no log"); }

  std::optional<TemporaryDirectory> directory_;
  JobReaper reaper_;
};

TEST_F(JobLauncherTest, AJobHasASessionThreeDescriptorsAndItsEnvironment) {
  UniqueFd inherited(::open("/dev/null", O_RDONLY));  // without close-on-exec: must not reach the job
  ExitState exit =
      // Without a pipe, for which the shell has descriptors itself.
      Run(Shell("for fd in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && printf \"$fd \"; done; readlink "
                "/proc/$$/fd/0; echo $COLOUR; pwd; cut -d' ' -f6 "
                "/proc/$$/stat; echo $$;"
                "echo error >&2; exit 7"));
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(exit.signal, 0);
  std::string log = Log();
  EXPECT_THAT(log, ::testing::StartsWith("0 1 2 /dev/null\ngreen\n" + directory_->path() + "\n"));
  EXPECT_THAT(log, HasSubstr("error\n"));
  // Session and process group are its own.
  std::string rest = log.substr(log.find(directory_->path()) + directory_->path().size() + 1);
  std::string session = rest.substr(0, rest.find('\n'));
  EXPECT_THAT(rest, HasSubstr("\n" + session + "\n"));
}

TEST_F(JobLauncherTest, AJobHasTheSettingsThatItIsToHave) {
  auto settings = ReadProcessSettings(::getpid());
  ASSERT_TRUE(settings.ok()) << settings.status();
  settings->file_mode_mask = 0477;
  settings->nice = std::max(settings->nice, 11);
  for (auto& [number, limit] : settings->limits) {
    if (number == RLIMIT_CORE) limit = {0, 0};
    if (number == RLIMIT_NOFILE) limit.rlim_cur = 99;
  }
  settings->oom_score_adj = 987;
  LaunchOptions options = Shell("umask; ulimit -c; ulimit -n; nice; cat /proc/self/oom_score_adj");
  options.settings = *settings;
  if (::geteuid() == 0) options.run_as = RunAs{kNobody, kNobody, {}};
  std::vector<std::string> warnings;
  auto pid = LaunchJob(options, &warnings);
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  auto end = reaper_.Adopt(*pid, {});
  ASSERT_TRUE(end.ok() && (*end)->WaitFor(kLong).has_value());
  EXPECT_EQ(Log(), absl::StrCat("0477\n0\n99\n", settings->nice, "\n987\n"));
  struct stat log;
  ASSERT_EQ(::stat(Path("log").c_str(), &log), 0);
  EXPECT_EQ(log.st_mode & 0777, 0600u) << "the mask is the program's, not ours";
}

TEST_F(JobLauncherTest, ASettingThatIsRefusedIsTold) {
  auto settings = ReadProcessSettings(::getpid());
  ASSERT_TRUE(settings.ok()) << settings.status();
  for (auto& [number, limit] : settings->limits) {
    if (number == RLIMIT_NOFILE) limit.rlim_max = RLIM_INFINITY;  // more than the kernel allows anybody
  }
  LaunchOptions options = Shell("echo runs");
  options.settings = *settings;
  std::vector<std::string> warnings;
  auto pid = LaunchJob(options, &warnings);
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_THAT(warnings, ::testing::ElementsAre(HasSubstr("open files")));
  auto end = reaper_.Adopt(*pid, {});
  ASSERT_TRUE(end.ok() && (*end)->WaitFor(kLong).has_value());
  EXPECT_EQ(Log(), "runs\n");
  options.argv = {"no-such-program-anywhere"};
  EXPECT_EQ(LaunchJob(options, &warnings).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobLauncherTest, TheLogIsAppendedTo) {
  ASSERT_TRUE(WriteFileAtomically(Path("log"), "before\n").ok());
  Run(Shell("echo after"));
  EXPECT_EQ(Log(), "before\nafter\n");
}

TEST_F(JobLauncherTest, HowAKilledJobEnded) {
  ExitState exit = Run(Shell("kill -KILL $$"));
  EXPECT_EQ(exit.signal, SIGKILL);
}

TEST_F(JobLauncherTest, AsAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  LaunchOptions options = Shell("id -u; id -g; id -G; touch made");
  options.run_as = RunAs{kNobody, kNobody, {kNobody, 12345}};
  EXPECT_EQ(Run(options).code, 0);
  EXPECT_EQ(Log(), "65534\n65534\n65534 12345\n");
  struct stat info;
  ASSERT_EQ(::stat(Path("log").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody) << "the log is opened with the user's rights";
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(Path("made").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
}

TEST_F(JobLauncherTest, AUserCanNotWriteWhatIsNotTheirs) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(::chmod(directory_->path().c_str(), 0755), 0);
  LaunchOptions options = Shell("true");
  options.run_as = RunAs{kNobody, kNobody, {}};
  auto refused = LaunchJob(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(options.log));
  EXPECT_FALSE(PathExists(options.log));

  auto opened = OpenFileAs(options.run_as, Path("other"), O_WRONLY | O_CREAT, 0600);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(OpenFileAs(std::nullopt, Path("other"), O_WRONLY | O_CREAT, 0600).ok());
  EXPECT_EQ(::geteuid(), 0u) << "this thread keeps its rights";
}

TEST_F(JobLauncherTest, AUserWhoseRightsAThreadHasCanNotSignalIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  int to_user[2];
  ASSERT_EQ(::pipe2(to_user, O_CLOEXEC), 0);
  const pid_t user = ::fork();
  if (user == 0) {
    pid_t thread = 0;
    if (::setresuid(kNobody, kNobody, kNobody) != 0 ||
        ::read(to_user[0], &thread, sizeof thread) != sizeof thread)
      ::_exit(2);
    ::_exit(::syscall(SYS_tgkill, ::getppid(), thread, 0) == 0 ? 1 : 0);
  }
  int answer = -1;
  ASSERT_TRUE(DoAs(RunAs{kNobody, kNobody, {}}, [&] {
                const pid_t thread = ::gettid();
                if (::write(to_user[1], &thread, sizeof thread) == sizeof thread) ::waitpid(user, &answer, 0);
              }).ok());
  ::close(to_user[0]);
  ::close(to_user[1]);
  EXPECT_EQ(answer, 0) << "1: the user may kill the whole service";
}

TEST_F(JobLauncherTest, WhatTheServiceHasOpenIsNotTheUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  // He may read it where he finds it; but not find it.
  ASSERT_TRUE(WriteFileAtomically(Path("hidden"), "text", 0666).ok());
  ASSERT_EQ(::chmod(Path("hidden").c_str(), 0666), 0);
  ASSERT_EQ(::chmod(directory_->path().c_str(), 0700), 0);
  auto held = OpenFile(Path("hidden"), O_RDONLY);
  ASSERT_TRUE(held.ok());
  const RunAs nobody{kNobody, kNobody, {}};
  for (const char* form : {"/proc/self/fd/%d", "/proc/thread-self/fd/%d", "/dev/fd/%d"}) {
    char path[64];
    std::snprintf(path, sizeof path, form, held->get());
    EXPECT_FALSE(OpenFileAs(nobody, path, O_WRONLY | O_APPEND, 0600).ok()) << path;
    EXPECT_TRUE(OpenFileAs(std::nullopt, path, O_WRONLY | O_APPEND, 0600).ok()) << path;
  }
  for (const char* path : {"/proc/self/mem", "/proc/thread-self/mem"})
    EXPECT_FALSE(OpenFileAs(nobody, path, O_RDWR, 0600).ok()) << path;
}

TEST_F(JobLauncherTest, ATerminalThatTheDaemonDoesNotHave) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setsid();
    const auto refused = OpenFileAs(std::nullopt, "/dev/tty", O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::_exit(absl::StrContains(refused.status().message(), "has no terminal") ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(JobLauncherTest, NobodyWaitsForTheOtherEndOfAFifo) {
  ASSERT_EQ(::mkfifo(Path("fifo").c_str(), 0666), 0);
  auto refused = OpenFileAs(std::nullopt, Path("fifo"), O_WRONLY | O_CREAT | O_APPEND, 0600);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("nobody reads"));

  UniqueFd reader(::open(Path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  auto opened = OpenFileAs(std::nullopt, Path("fifo"), O_WRONLY | O_APPEND, 0600);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(::fcntl(opened->get(), F_GETFL) & O_NONBLOCK, 0) << "what the job gets waits as ever";

  ASSERT_EQ(::mkfifo(Path("input").c_str(), 0666), 0);
  LaunchOptions options = Shell("true");
  options.standard_input = Path("input");
  options.longest_start = absl::Milliseconds(100);
  auto late = LaunchJob(options);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("nobody writes to"));
}

TEST_F(JobLauncherTest, AJobThatIsNotRunningYetKeepsNoneOfOurLocks) {
  ASSERT_EQ(::mkfifo(Path("input").c_str(), 0666), 0);
  auto held = LockFile(Path("lock"), LOCK_EX);
  ASSERT_TRUE(held.ok()) << held.status();
  LaunchOptions options = Shell("true");
  options.standard_input = Path("input");
  absl::StatusOr<pid_t> pid = absl::UnknownError("not started");
  std::atomic<bool> returned{false};
  std::thread starter([&] {
    pid = LaunchJob(options);
    returned = true;
  });
  // It opens its log before its input.
  while (!PathExists(options.log) && !returned) std::this_thread::yield();
  EXPECT_FALSE(returned);
  held->Reset();
  EXPECT_TRUE(LockFile(Path("lock"), LOCK_EX | LOCK_NB).ok());
  UniqueFd both_ends(::open(Path("input").c_str(), O_RDWR | O_CLOEXEC));
  starter.join();
  ASSERT_TRUE(pid.ok()) << pid.status();
  auto end = reaper_.Adopt(*pid, {});
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE((*end)->WaitFor(kLong).has_value());
}

TEST_F(JobLauncherTest, WhatIsNotedOfItIsThereBeforeItsCommand) {
  const auto note = [this](pid_t pid) { return WriteFileAtomically(Path("noted"), absl::StrCat(pid)); };
  EXPECT_TRUE(Run(Shell("test \"$(cat noted)\" = $$"), note).ok());
}

TEST_F(JobLauncherTest, NorIsOneBegunThatCanNotBeNoted) {
  pid_t process = 0;
  const auto note = [&](pid_t pid) {
    process = pid;
    return absl::ResourceExhaustedError("no room to note it");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(LaunchJob(Shell("touch begun"), nullptr, note).status()));
  EXPECT_EQ(::kill(process, 0), -1);
  EXPECT_FALSE(PathExists(Path("begun")));
}

TEST_F(JobLauncherTest, ACommandThatNobodyCanKnowOfIsNotBegun) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
  int told[2];
  ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
  const pid_t service = ::fork();
  if (service == 0) {
    const auto note = [&](pid_t pid) {
      (void)!::write(told[1], &pid, sizeof pid);
      ::kill(::getpid(), SIGKILL);
      return absl::OkStatus();
    };
    LaunchJob(Shell("touch begun"), nullptr, note).status().IgnoreError();
    ::_exit(1);
  }
  pid_t job = 0;
  ASSERT_EQ(::read(told[0], &job, sizeof job), static_cast<ssize_t>(sizeof job));
  int status = 0;
  EXPECT_EQ(::waitpid(service, &status, 0), service);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(::waitpid(job, &status, 0), job);
  EXPECT_FALSE(PathExists(Path("begun")));
  for (const int end : told) ::close(end);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

TEST_F(JobLauncherTest, WhatCanNotBeStarted) {
  LaunchOptions options = Shell("true");
  options.argv = {"no-such-program-anywhere"};
  auto refused = LaunchJob(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("no-such-program-anywhere"));

  ASSERT_TRUE(WriteFileAtomically(Path("plain"), "text", 0644).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("text"), "text", 0755).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("script"), "#! /no/such/interpreter -x\n", 0755).ok());
  ASSERT_TRUE(WriteFileAtomically(Path("of-windows"), "#!/bin/sh\r\n", 0755).ok());
  constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;
  constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;
  const struct {
    const char* program;
    absl::StatusCode code;
    const char* words;
  } wrong[] = {{"./plain", kDenied, "chmod +x ./plain"},
               {"/etc", kDenied, "is a folder"},
               {"./text", kFailed, "begins with #!"},
               {"./script", kFailed, "/no/such/interpreter in its first line"},
               {"script", kFailed, "/no/such/interpreter in its first line"},
               {"./of-windows", kFailed, "carriage return"},
               {"./absent", kFailed, "no such program: check the spelling"}};
  options.environment = {"PATH=/absent:" + directory_->path()};
  for (const auto& one : wrong) {
    options.argv = {one.program};
    const absl::Status status = LaunchJob(options).status();
    EXPECT_EQ(status.code(), one.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.words));
  }

  if (::geteuid() == 0) {  // in mounts of its own nobody looks at the file
    options.argv = {"./absent"};
    options.mounts.Reset(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(LaunchJob(options).status().code(), kFailed);
  }

  options = Shell("true");
  options.working_directory = Path("absent");
  refused = LaunchJob(options);
  EXPECT_EQ(refused.status().code(), kFailed);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(options.working_directory));
  options.working_directory = Path("script");
  refused = LaunchJob(options);
  EXPECT_EQ(refused.status().code(), kFailed);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr(options.working_directory + " is no folder"));

  const auto below = OpenFileAs(std::nullopt, Path("script/log"), O_WRONLY | O_CREAT, 0600);
  EXPECT_EQ(below.status().code(), kFailed) << below.status();

  options = Shell(": " + std::string(size_t{256} << 10, 'x'));
  refused = LaunchJob(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("shorten them"));

  options.argv.clear();
  EXPECT_EQ(LaunchJob(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(JobLauncherTest, TheReaperTakesOnlyItsOwn) {
  SubprocessOptions helper;
  helper.argv = {"/bin/sh", "-c", "exit 5"};
  auto other = Subprocess::Start(helper);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(Run(Shell("exit 3")).code, 3);
  auto exit = other->Wait();
  ASSERT_TRUE(exit.ok());
  EXPECT_EQ(exit->code, 5);
}

TEST_F(JobLauncherTest, WaitingEndsWithoutTheJob) {
  auto pid = LaunchJob(Shell("exec sleep 1000"));
  ASSERT_TRUE(pid.ok());
  int told = 0;
  auto end = reaper_.Adopt(*pid, [&told](const ExitState& exit) { told = exit.signal; });
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE((*end)->WaitFor(absl::ZeroDuration()).has_value());
  ASSERT_EQ(::kill(*pid, SIGTERM), 0);
  std::optional<ExitState> exit = (*end)->WaitFor(kLong);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->signal, SIGTERM);
  EXPECT_EQ(told, SIGTERM);
}

}  // namespace
}  // namespace rekindle::daemon
