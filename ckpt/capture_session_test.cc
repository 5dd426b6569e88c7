#include "ckpt/capture_session.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "base/deadline.h"
#include "base/standstill.h"
#include "base/test_child.h"
#include "base/test_descriptors.h"
#include "ckpt/capture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class CaptureSessionTest : public testing::Test {
 protected:
  static JobInspection Job(const TestChild& root) {
    JobInspection job;
    job.processes.push_back(ReadProcess(root.pid()).value());
    return job;
  }

  // A Rekindle that begins a capture of `job`, stops it as CRIU does, and is killed.
  void DieInACapture(const TestChild& job, const JobInspection& inspected) {
    pid_t rekindle = ::fork();
    if (rekindle == 0) {
      auto session = CaptureSession::Begin(runtime(), inspected);
      if (!session.ok()) ::_exit(1);
      ::kill(job.pid(), SIGSTOP);
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(rekindle, &status, 0), rekindle);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
  }

  // What is in it for good is left out.
  std::vector<std::string> RuntimeFolder() const {
    std::vector<std::string> names = ListDirectory(runtime()).value();
    for (const char* lock : {"captures.lock", "captures.claims"}) std::erase(names, lock);
    return names;
  }
  std::string runtime() const { return folder_.path() + "/run"; }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_session_test.").value();
};

TEST_F(CaptureSessionTest, OneCaptureOfAJobAtATime) {
  TestChild job, other;
  ASSERT_TRUE(job.prepared() && other.prepared());
  {
    auto session = CaptureSession::Begin(runtime(), Job(job));
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_THAT(session->work_directory(), StartsWith(runtime() + "/"));
    // Whichever runtime folder the other one uses.
    for (const std::string& folder : {runtime(), folder_.path() + "/elsewhere"}) {
      absl::Status second = CaptureSession::Begin(folder, Job(job)).status();
      EXPECT_EQ(second.code(), absl::StatusCode::kAborted) << second;
      EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(job.pid())));
    }
    EXPECT_TRUE(CaptureSession::Begin(runtime(), Job(other)).ok());
  }
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
  EXPECT_TRUE(CaptureSession::Begin(runtime(), Job(job)).ok());
}

// Anybody can bind abstract sockets.
TEST_F(CaptureSessionTest, ANameThatAnybodyCanTakeKeepsNobodyOut) {
  TestChild job;
  const UniqueFd hostile(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = "rekindle-capture-" + std::to_string(job.pid());
  name.copy(address.sun_path + 1, name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::bind(hostile.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  auto session = CaptureSession::Begin(runtime(), Job(job));
  EXPECT_TRUE(session.ok()) << session.status();
}

// In a container of its own with the same runtime folder.
TEST_F(CaptureSessionTest, OneCaptureOfAJobAtATimeAlsoForAnotherMountOfProc) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting takes root";
  TestChild job;
  const JobInspection inspected = Job(job);
  auto session = CaptureSession::Begin(runtime(), inspected);
  ASSERT_TRUE(session.ok()) << session.status();
  const pid_t other = ::fork();
  if (other == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      ::_exit(2);
    }
    ::_exit(absl::IsAborted(CaptureSession::Begin(runtime(), inspected).status()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CaptureSessionTest, OtherUsersCannotClaimAProcess) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another user takes root";
  TestChild job;
  const pid_t other = ::fork();
  if (other == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const std::string file = "/proc/" + std::to_string(job.pid()) + "/personality";
    ::_exit(::open(file.c_str(), O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CaptureSessionTest, RecoveryFreesWhatADeadCaptureLeftStopped) {
  TestChild job;
  ASSERT_TRUE(job.prepared());
  ASSERT_NO_FATAL_FAILURE(DieInACapture(job, Job(job)));
  int status = 0;
  ASSERT_EQ(::waitpid(job.pid(), &status, WUNTRACED), job.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_THAT(RuntimeFolder(), SizeIs(1));

  auto freed = RecoverInterruptedCaptures(runtime());
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_THAT(*freed, ElementsAre(job.pid()));
  ASSERT_EQ(::waitpid(job.pid(), &status, WCONTINUED), job.pid());
  EXPECT_TRUE(WIFCONTINUED(status));
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
  // And the job can be captured again.
  EXPECT_TRUE(CaptureSession::Begin(runtime(), Job(job)).ok());
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
}

TEST_F(CaptureSessionTest, RecoveryLeavesAJobStoppedThatWasStoppedBefore) {
  TestChild job;
  ASSERT_TRUE(job.prepared() && job.Stop());
  ASSERT_NO_FATAL_FAILURE(DieInACapture(job, Job(job)));
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_EQ(ReadProcess(job.pid())->state, 'T');
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
}

TEST_F(CaptureSessionTest, RecoveryLeavesAnotherProcessOfTheSamePidAlone) {
  TestChild stranger;
  ASSERT_TRUE(stranger.prepared());
  JobInspection long_gone = Job(stranger);
  long_gone.processes[0].start_ticks -= 1;
  ASSERT_NO_FATAL_FAILURE(DieInACapture(stranger, long_gone));
  int status = 0;
  ASSERT_EQ(::waitpid(stranger.pid(), &status, WUNTRACED), stranger.pid());
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_EQ(ReadProcess(stranger.pid())->state, 'T');
}

TEST_F(CaptureSessionTest, RecoveryLeavesALivingCaptureAlone) {
  TestChild job;
  auto session = CaptureSession::Begin(runtime(), Job(job));
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(job.Stop());
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_EQ(ReadProcess(job.pid())->state, 'T');
  EXPECT_TRUE(PathExists(session->work_directory()));
}

// Others may look for the dead at any moment of a beginning.
TEST_F(CaptureSessionTest, RecoveryNeverTakesABeginningCaptureForADeadOne) {
  TestChild job;
  JobInspection inspected = Job(job);
  std::atomic<bool> stop{false};
  std::thread recovery([&] {
    while (!stop) EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  });
  for (int i = 0; i < 300; ++i) {
    auto session = CaptureSession::Begin(runtime(), inspected);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) break;
    EXPECT_TRUE(PathExists(session->work_directory() + "/journal"));
  }
  stop = true;
  recovery.join();
}

// Traces `job` under the name of CRIU, until it is killed.
void BecomeCriuOf(const TestChild& job) {
  int ends[2];  // neither is closed: there is nothing to read, for ever
  if (::ptrace(PTRACE_SEIZE, job.pid(), nullptr, nullptr) != 0 || ::pipe(ends) != 0 ||
      ::dup2(ends[0], STDIN_FILENO) < 0) {
    ::_exit(1);
  }
  ::execl("/bin/sh", "criu", "-c", "read line", "criu", "dump", "--tree", nullptr);
  ::_exit(1);
}

TEST_F(CaptureSessionTest, RecoveryOfOneDoesNotWaitForTheCriuOfAnother) {
  constexpr size_t kJobs = 4;  // whichever is looked at first
  const TestChild held, jobs[kJobs];
  const auto die_in_a_capture = [&](const TestChild& job) {
    DieInACapture(job, Job(job));
    int status = 0;
    ASSERT_EQ(::waitpid(job.pid(), &status, WUNTRACED), job.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  };
  ASSERT_NO_FATAL_FAILURE(die_in_a_capture(held));
  for (const TestChild& job : jobs) ASSERT_NO_FATAL_FAILURE(die_in_a_capture(job));
  const pid_t criu = ::fork();
  if (criu == 0) BecomeCriuOf(held);
  const absl::Cleanup end_criu = [criu] {
    ::kill(criu, SIGKILL);
    ::waitpid(criu, nullptr, 0);
  };
  while (!IsCriuDump(criu)) {
    int status = 0;
    ASSERT_EQ(::waitpid(criu, &status, WNOHANG), 0) << "it could not trace the job";
    std::this_thread::yield();
  }
  std::thread recovery(
      [&] { EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), SizeIs(kJobs + 1)); });
  for (const TestChild& job : jobs) {
    int status = 0;
    EXPECT_EQ(::waitpid(job.pid(), &status, WCONTINUED), job.pid());
    EXPECT_TRUE(WIFCONTINUED(status));
  }
  // Nor is what it traces let go on before it has ended.
  EXPECT_THAT(std::string(1, ReadProcess(held.pid())->state), AnyOf("T", "t"));
  ::kill(criu, SIGKILL);
  recovery.join();
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
}

TEST_F(CaptureSessionTest, RecoveryOfNothingIsNoError) {
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
}

TEST_F(CaptureSessionTest, AFolderWithoutAJournalGoesUnlessACaptureBegins) {
  ASSERT_TRUE(MakeDirectories(runtime() + "/capture-XYZ").ok());
  {
    auto another = LockFile(runtime() + "/captures.lock", LOCK_SH);
    ASSERT_TRUE(another.ok()) << another.status();
    EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
    EXPECT_THAT(RuntimeFolder(), ElementsAre("capture-XYZ"));
  }
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
}

TEST_F(CaptureSessionTest, AJournalThatCantBeUsedIsKeptWithItsFolder) {
  TestChild job;
  ASSERT_TRUE(job.prepared());
  ASSERT_NO_FATAL_FAILURE(DieInACapture(job, Job(job)));
  int status = 0;
  ASSERT_EQ(::waitpid(job.pid(), &status, WUNTRACED), job.pid());
  const std::string folder = runtime() + "/" + RuntimeFolder().front();
  const std::string text = ReadFile(folder + "/journal").value();
  const std::string newer = "rekindle capture journal 2" + text.substr(text.find('\n'));
  for (const std::string& other : {newer, std::string(), text.substr(0, text.find('\n') + 1)}) {
    ASSERT_TRUE(ReplaceFile(folder + "/journal", other).ok());
    testing::internal::CaptureStderr();
    EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(folder + "/journal: "));
    EXPECT_EQ(ReadFile(folder + "/journal").value(), other);
    EXPECT_EQ(ReadProcess(job.pid())->state, 'T');
  }
  // One that can't be opened, of whatever kind the error is.
  ASSERT_TRUE(RemoveTree(folder + "/journal").ok());
  ASSERT_TRUE(MakeDirectories(folder + "/journal/in-the-way").ok());
  testing::internal::CaptureStderr();
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(folder + "/journal: "));
  EXPECT_TRUE(PathExists(folder));
  ASSERT_TRUE(RemoveTree(folder + "/journal").ok());
  ASSERT_TRUE(ReplaceFile(folder + "/journal", text).ok());
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), ElementsAre(job.pid()));
  EXPECT_THAT(RuntimeFolder(), IsEmpty());
}

TEST_F(CaptureSessionTest, KeptLogsOutliveTheSessionAndOldOnesGo) {
  TestChild job;
  std::vector<std::string> kept;
  for (int i = 0; i < 10; ++i) {
    auto session = CaptureSession::Begin(runtime(), Job(job));
    ASSERT_TRUE(session.ok()) << session.status();
    std::string log = session->work_directory() + "/dump.log";
    ASSERT_TRUE(WriteFileAtomically(log, "why it failed").ok());
    kept.push_back(session->KeepLogs());
    EXPECT_NE(kept.back(), session->work_directory());
  }
  EXPECT_EQ(ReadFile(kept.back() + "/dump.log").value(), "why it failed");
  EXPECT_THAT(ListDirectory(kept.back()).value(), ElementsAre("dump.log"));
  EXPECT_THAT(RuntimeFolder(), SizeIs(8));
  // They are no leftovers of a dead capture.
  EXPECT_THAT(RecoverInterruptedCaptures(runtime()).value(), IsEmpty());
  EXPECT_THAT(RuntimeFolder(), SizeIs(8));
}

// A job of two: `parent` and the child that it forks.
pid_t ForkAndTell(int pipe_end) {
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  return ::write(pipe_end, &child, sizeof child) == static_cast<ssize_t>(sizeof child) ? child : -1;
}

TEST_F(CaptureSessionTest, ResumeAndKillReachTheTreeOfNowAndNobodyElse) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  TestChild job([&] { return ForkAndTell(ends[1]) > 0; }), stranger;
  ASSERT_TRUE(job.prepared() && stranger.prepared());
  pid_t child = 0;
  ASSERT_TRUE(ReadFully(read_end.get(), &child, sizeof child, "pipe").ok());
  // The child came after the job was looked at, the stranger has another process's PID.
  std::vector<ProcessInfo> recorded = {ReadProcess(job.pid()).value(), ReadProcess(stranger.pid()).value()};
  recorded[1].start_ticks -= 1;
  ASSERT_TRUE(job.Stop() && stranger.Stop());
  EXPECT_THAT(ResumeTree(recorded).value(), ElementsAre(job.pid()));
  int status = 0;
  ASSERT_EQ(::waitpid(job.pid(), &status, WCONTINUED), job.pid());
  EXPECT_THAT(ResumeTree(recorded).value(), IsEmpty());

  EXPECT_TRUE(KillTree(recorded).ok());
  EXPECT_EQ(ReadProcess(job.pid())->state, 'Z');
  auto orphan = ReadProcess(child);  // unless whoever inherited it has reaped it
  EXPECT_TRUE(!orphan.ok() || orphan->state == 'Z');
  EXPECT_EQ(ReadProcess(stranger.pid())->state, 'T');
}

TEST_F(CaptureSessionTest, ATreeIsReachedWhereThereAreMoreProcessesThanDescriptors) {
  constexpr int kLeft = 8;
  std::vector<std::unique_ptr<TestChild>> strangers;  // before the job and behind it
  for (int i = 0; i < 2 * kLeft; ++i) strangers.push_back(std::make_unique<TestChild>());
  const TestChild job([] {
    for (int i = 0; i < 2 * kLeft; ++i) {
      if (::fork() != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    return true;
  });
  for (int i = 0; i < 2 * kLeft; ++i) strangers.push_back(std::make_unique<TestChild>());
  const std::vector<ProcessInfo> recorded = {ReadProcess(job.pid()).value()};
  {
    const FewDescriptorsLeft few(kLeft);
    EXPECT_TRUE(StopTree(recorded).ok());
    AwaitStandstill(job.pid(), Deadline(absl::InfiniteDuration()));
    EXPECT_THAT(ResumeTree(recorded).value(), Contains(job.pid()));
    EXPECT_TRUE(KillTree(recorded).ok());
  }
  EXPECT_EQ(ReadProcess(job.pid())->state, 'Z');
  for (const auto& stranger : strangers)
    EXPECT_EQ(::waitpid(stranger->pid(), nullptr, WNOHANG | WUNTRACED), 0) << "it ended, or was stopped";
}

TEST_F(CaptureSessionTest, WhatCouldNotBeDoneToATreeIsTold) {
  const TestChild job;
  const std::vector<ProcessInfo> recorded = {ReadProcess(job.pid()).value()};
  {
    const FewDescriptorsLeft none;
    EXPECT_FALSE(StopTree(recorded).ok());
    EXPECT_FALSE(ResumeTree(recorded).ok());
    EXPECT_FALSE(KillTree(recorded).ok());
  }
  EXPECT_EQ(::waitpid(job.pid(), nullptr, WNOHANG | WUNTRACED), 0) << "it ended, or was stopped";
}

// While it waits for the child of its vfork(2) nothing stops it.
TEST_F(CaptureSessionTest, OneThatHasYetToStopGoesOnToo) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t job = ::fork();
  if (job == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[1]);
    char byte;
    // As vfork(2), which the compiler wants a say in.
    if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0)
      ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
    for (;;) ::pause();
  }
  const absl::Cleanup end = [job] {
    ::kill(job, SIGKILL);
    ::waitpid(job, nullptr, 0);
  };
  while (ReadProcess(job)->state != 'D') ASSERT_EQ(::waitpid(job, nullptr, WNOHANG), 0);
  const std::vector<ProcessInfo> recorded = {ReadProcess(job).value()};
  ASSERT_TRUE(StopTree(recorded).ok());
  ASSERT_EQ(ReadProcess(job)->state, 'D');
  ASSERT_TRUE(ResumeTree(recorded).ok());
  write_end.Reset();
  siginfo_t info = {};
  // It goes on, to what follows; a child that stops would be told of here.
  while (ReadProcess(job)->state == 'D') ASSERT_EQ(::waitpid(job, nullptr, WNOHANG | WUNTRACED), 0);
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(job), &info, WSTOPPED | WNOHANG | WNOWAIT), 0);
  EXPECT_EQ(info.si_pid, 0) << "it stopped";
}

TEST_F(CaptureSessionTest, RuntimeFolderThatCantBeMadeIsNamed) {
  TestChild job;
  ASSERT_TRUE(WriteFileAtomically(runtime(), "a file").ok());
  absl::Status status = CaptureSession::Begin(runtime(), Job(job)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(runtime()));
}

}  // namespace
}  // namespace rekindle::ckpt
