#include "ckpt/job_inspection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "ckpt/held_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/control_channel.h"

namespace rekindle::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The refusal of `pid`; also that its message names the process.
absl::Status Refusal(pid_t pid, uid_t caller = 0, pid_t caller_pid = 0) {
  absl::Status status = InspectJob(pid, caller, caller_pid).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(pid)));
  return status;
}

// As Refusal, of a process that can't be captured as it is now.
std::string Obstacle(const TestChild& child) {
  EXPECT_TRUE(child.prepared());
  absl::Status status = Refusal(child.pid());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

class JobInspectionTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_inspection_test.").value();
};

TEST_F(JobInspectionTest, ProcessesThatAreNotThere) {
  TestChild child;
  pid_t pid = child.pid();
  child.Kill();
  child.Reap();
  EXPECT_EQ(Refusal(pid).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refusal(0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refusal(-5).code(), absl::StatusCode::kNotFound);
}

TEST_F(JobInspectionTest, ThreadIsNoProcess) {
  std::thread thread([] { EXPECT_EQ(Refusal(::gettid()).code(), absl::StatusCode::kNotFound); });
  thread.join();
}

TEST_F(JobInspectionTest, ZombieIsRefused) {
  TestChild child;
  child.Kill();
  ASSERT_TRUE(child.AwaitEnd());
  EXPECT_THAT(Obstacle(child), HasSubstr("zombie"));
}

TEST_F(JobInspectionTest, WhetherOnlyTheMainThreadHasEnded) {
  // By itself, not in the handler of a signal: ThreadSanitizer may put those off for ever in a forked child.
  TestChild child(
      [] {
        std::thread([] {
          for (;;) ::pause();
        }).detach();
        return true;
      },
      [] { ::syscall(SYS_exit, 0); });
  ASSERT_TRUE(child.prepared());
  const std::vector<pid_t> threads = ThreadsOf(child.pid()).value();
  // ThreadSanitizer may have one of its own.
  const auto found =
      std::find_if(threads.begin(), threads.end(), [&](pid_t thread) { return thread != child.pid(); });
  ASSERT_NE(found, threads.end());
  const pid_t other = *found;
  while (ReadProcessStat(child.pid()).value().state != 'Z') ::sched_yield();
  const absl::Status status = Refusal(child.pid());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pthread_exit"));
  // One that somebody traces stays a zombie too.
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, other, nullptr, nullptr), 0);
  child.Kill();
  siginfo_t info;
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(other), &info, WEXITED | WNOWAIT | __WALL), 0);
  EXPECT_THAT(Obstacle(child), HasSubstr("just ending"));
  EXPECT_EQ(::waitpid(other, nullptr, __WALL), other);
}

TEST_F(JobInspectionTest, InitIsRefused) { EXPECT_EQ(Refusal(1).code(), absl::StatusCode::kInvalidArgument); }

TEST_F(JobInspectionTest, KernelThreadIsRefused) {
  for (pid_t pid : ListProcesses()) {
    auto stat = ReadProcessStat(pid);
    if (!stat.ok() || !stat->kernel_thread()) continue;
    absl::Status status = Refusal(pid);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("kernel"));
    return;
  }
  GTEST_SKIP() << "this PID namespace shows no thread of the kernel";
}

TEST_F(JobInspectionTest, TreesThatHoldRekindleOrTheCallerAreRefused) {
  EXPECT_EQ(Refusal(::getpid()).code(), absl::StatusCode::kInvalidArgument);
  TestChild job;
  EXPECT_EQ(Refusal(job.pid(), 0, job.pid()).code(), absl::StatusCode::kInvalidArgument);
  // Asked by a descendant of the process to be captured.
  TestChild descendant([] {
    absl::Status status = InspectJob(::getppid(), 0, 0).status();
    return status.code() == absl::StatusCode::kInvalidArgument &&
           status.message().find("Rekindle itself") != absl::string_view::npos;
  });
  EXPECT_TRUE(descendant.prepared());
}

TEST_F(JobInspectionTest, OthersMayOnlyCaptureWhatIsTheirs) {
  TestChild child;
  EXPECT_EQ(Refusal(child.pid(), ::getuid() + 1000).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(InspectJob(child.pid(), ::getuid(), 0).ok());
}

TEST_F(JobInspectionTest, NorWhatASetUidProgramOfTheirsIs) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be others";
  constexpr uid_t kUser = 65534;
  const auto become = [](uid_t effective) {
    return ::setresgid(kUser, kUser, kUser) == 0 && ::setresuid(kUser, effective, effective) == 0;
  };
  const TestChild running([&] { return become(0); });
  EXPECT_EQ(Refusal(running.pid(), kUser).code(), absl::StatusCode::kPermissionDenied);
  // Below one that is all his.
  const TestChild parent([&] {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!become(0) || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ::_exit(1);
      for (;;) ::pause();
    }
    int status;
    const auto is_root = [child] {
      return absl::StrContains(ReadFile(absl::StrCat("/proc/", child, "/status")).value_or(""),
                               "Uid:\t65534\t0\t0\t0");
    };
    while (!is_root()) {
      if (::waitpid(child, &status, WNOHANG) != 0) return false;
    }
    return become(kUser) && ::prctl(PR_SET_DUMPABLE, 1) == 0;
  });
  ASSERT_TRUE(parent.prepared());
  const absl::Status refused = InspectJob(parent.pid(), kUser, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uid 0"));
}

TEST_F(JobInspectionTest, AnotherUidNeedsACapability) {
  TestChild child([] { return ::setuid(65534) == 0; });
  ASSERT_TRUE(child.prepared());
  std::string status = ReadFile("/proc/self/status").value();
  uint64_t capabilities = std::strtoull(status.c_str() + status.find("CapEff:") + 7, nullptr, 16);
  constexpr int kSysResource = 24;
  if ((capabilities >> kSysResource & 1) != 0) {
    EXPECT_TRUE(InspectJob(child.pid(), 0, 0).ok());
  } else {
    EXPECT_EQ(Refusal(child.pid()).code(), absl::StatusCode::kUnimplemented);
  }
}

TEST_F(JobInspectionTest, AnotherGidNeedsItToo) {
  TestChild child([] { return ::setresgid(65534, 65534, 65534) == 0; });
  ASSERT_TRUE(child.prepared());
  if (InspectJob(child.pid(), 0, 0).ok()) GTEST_SKIP() << "CAP_SYS_RESOURCE is here";
  EXPECT_THAT(std::string(Refusal(child.pid()).message()),
              AllOf(HasSubstr("gid 65534"), HasSubstr("CAP_SYS_RESOURCE")));
}

TEST_F(JobInspectionTest, ProgramInMemoryAloneIsRefused) {
  const int program = ::memfd_create("program", 0);  // not closed by exec: the child has it on
  ASSERT_GE(program, 0);
  const std::string sleep = ReadFile("/bin/sleep").value();
  ASSERT_TRUE(WriteFully(program, sleep.data(), sleep.size(), "the program").ok());
  const pid_t pid = ::fork();
  if (pid == 0) {
    char name[] = "sleep", seconds[] = "1000";
    char* argv[] = {name, seconds, nullptr};
    ::fexecve(program, argv, environ);
    ::_exit(1);
  }
  const std::string exe = absl::StrCat("/proc/", pid, "/exe");
  char target[256] = {};
  while (!absl::StartsWith(target, "/memfd:")) {  // until it is in its program
    ASSERT_GT(::readlink(exe.c_str(), target, sizeof target - 1), 0);
    ASSERT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
  }
  EXPECT_THAT(std::string(Refusal(pid).message()),
              AllOf(HasSubstr("/memfd:program"), HasSubstr("from a file")));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(program);
}

TEST_F(JobInspectionTest, IoUringIsRefused) {
  TestChild child([] {
    io_uring_params parameters = {};
    return ::syscall(SYS_io_uring_setup, 1, &parameters) >= 0;
  });
  EXPECT_THAT(Obstacle(child), AllOf(HasSubstr("io_uring"), HasSubstr("UV_USE_IO_URING=0")));
}

TEST_F(JobInspectionTest, UserfaultfdIsRefused) {
  TestChild child([] { return ::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY) >= 0; });
  EXPECT_THAT(Obstacle(child), HasSubstr("userfaultfd"));
}

TEST_F(JobInspectionTest, AServerOfFilesIsRefused) {
  if (!UniqueFd(::open("/dev/fuse", O_RDWR | O_CLOEXEC)).valid()) GTEST_SKIP() << "no /dev/fuse here";
  TestChild child([] { return ::open("/dev/fuse", O_RDWR | O_CLOEXEC) >= 0; });
  EXPECT_THAT(Obstacle(child), AllOf(HasSubstr("FUSE"), HasSubstr("outside the job")));
}

TEST_F(JobInspectionTest, RemovedWorkingDirectoryIsRefused) {
  std::string directory = Path("work");
  TestChild child([&] {
    return ::mkdir(directory.c_str(), 0700) == 0 && ::chdir(directory.c_str()) == 0 &&
           ::rmdir(directory.c_str()) == 0;
  });
  EXPECT_THAT(Obstacle(child), HasSubstr("working directory " + directory + " has been removed"));
}

TEST_F(JobInspectionTest, TracedProcessIsRefusedAndItsTracerNamed) {
  TestChild child;
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0);
  EXPECT_THAT(Obstacle(child), HasSubstr("process " + std::to_string(::getpid()) + " traces it"));
}

// Or an image would be taken that nothing can be restored from.
TEST_F(JobInspectionTest, PolicyThatCriuCanNotRestoreIsRefused) {
  struct {
    uint32_t size = 48, policy = 6;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime = 10'000'000, deadline = 30'000'000, period = 30'000'000;
  } attributes;  // struct sched_attr; 6: SCHED_DEADLINE
  TestChild child;
  if (::syscall(SYS_sched_setattr, child.pid(), &attributes, 0) != 0) {
    GTEST_SKIP() << "no deadline scheduling here: " << std::strerror(errno);
  }
  EXPECT_THAT(Obstacle(child), HasSubstr("chrt -o -p 0 " + std::to_string(child.pid())));
}

TEST_F(JobInspectionTest, ObstacleInAChildOfTheJobIsFound) {
  TestChild child([] {
    int ready[2];
    char byte = 0;
    if (::pipe(ready) != 0) return false;
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      bool made = ::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY) >= 0;
      if (!made || ::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    return ::read(ready[0], &byte, 1) == 1;
  });
  ASSERT_TRUE(child.prepared());
  EXPECT_THAT(std::string(InspectJob(child.pid(), 0, 0).status().message()), HasSubstr("userfaultfd"));
}

TEST_F(JobInspectionTest, TerminalsWhoseOtherSideIsOutside) {
  int master = -1, slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  UniqueFd master_owner(master), slave_owner(slave);
  struct stat info;
  ASSERT_EQ(::fstat(slave, &info), 0);
  char resource[64];
  std::snprintf(resource, sizeof resource, "tty[%lx:%lx]", static_cast<unsigned long>(info.st_rdev),
                static_cast<unsigned long>(info.st_dev));
  TestChild outside([&] {
    return ::close(master) == 0 && ::dup2(slave, 0) == 0 && ::dup2(slave, 1) == 1 && ::close(slave) == 0;
  });
  ASSERT_TRUE(outside.prepared());
  auto job = InspectJob(outside.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->external_ttys, ElementsAre(std::string(resource)));
  ASSERT_THAT(job->stdio, SizeIs(3));
  EXPECT_EQ(job->stdio[0].kind, "tty");
  EXPECT_EQ(job->stdio[0].resource, resource);
  EXPECT_TRUE(job->stdio[1].writable);

  // The job has both sides: the terminal comes back with it.
  TestChild both([&] { return ::dup2(slave, 0) == 0; });
  ASSERT_TRUE(both.prepared());
  job = InspectJob(both.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->external_ttys, IsEmpty());
  EXPECT_EQ(job->stdio[0].kind, "tty");
  EXPECT_EQ(job->stdio[0].resource, "");
}

// CRIU knows no serial ports of its own accord.
TEST_F(JobInspectionTest, TerminalsThatHaveNoOtherSide) {
  int seen = 0;
  for (const char* name : {"/dev/ttyS0", "/dev/hvc0", "/dev/tty1", "/dev/console"}) {
    const UniqueFd terminal(::open(name, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
    if (!terminal.valid() || ::isatty(terminal.get()) != 1) continue;
    SCOPED_TRACE(name);
    ++seen;
    struct stat info;
    ASSERT_EQ(::fstat(terminal.get(), &info), 0);
    const std::string resource = absl::StrFormat("tty[%x:%x]", info.st_rdev, info.st_dev);
    TestChild child([&] { return ::dup2(terminal.get(), 1) == 1; });
    ASSERT_TRUE(child.prepared());
    const auto job = InspectJob(child.pid(), 0, 0);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_THAT(job->external_ttys, ::testing::Contains(resource));
    ASSERT_THAT(job->stdio, SizeIs(3));
    EXPECT_EQ(job->stdio[1].kind, "tty");
    EXPECT_EQ(job->stdio[1].resource, resource);
  }
  if (seen == 0) GTEST_SKIP() << "no such terminal here";
}

TEST_F(JobInspectionTest, DevicesThatAreNoTerminals) {
  TestChild child([] {
    for (const char* name : {"/dev/zero", "/dev/full", "/dev/ptmx"}) {
      if (::open(name, O_RDWR | O_NOCTTY) < 0) return false;
    }
    const int null = ::open("/dev/null", O_RDWR);
    return ::dup2(null, 0) == 0 && ::dup2(null, 1) == 1 && ::dup2(null, 2) == 2;
  });
  ASSERT_TRUE(child.prepared());
  const auto job = InspectJob(child.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->external_ttys, IsEmpty());
  EXPECT_EQ(job->stdio[0].kind, "null");
}

// A loopback address to listen on, or the one that `listener` has.
sockaddr_in Loopback(int listener = -1) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (listener >= 0) ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  return address;
}

// -1 on failure.
int Listener() {
  int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback();
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return -1;
  return ::listen(listener, 4) == 0 ? listener : -1;
}

int ConnectedTo(int listener) {
  int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(listener);
  return ::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? client : -1;
}

TEST_F(JobInspectionTest, TcpConnectionsAreCountedInEachState) {
  TestChild child([&] {
    ::socket(AF_INET, SOCK_STREAM, 0);  // neither listens nor is connected
    int listener = Listener(), client = ConnectedTo(listener);
    // One end waits for the other to close.
    return ::accept(listener, nullptr, nullptr) >= 0 && ::shutdown(client, SHUT_WR) == 0;
  });
  ASSERT_TRUE(child.prepared());
  auto job = InspectJob(child.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->tcp_connections, 2u);  // no listening socket
  EXPECT_TRUE(job->listens_on_tcp);
  EXPECT_TRUE(job->connected_to_itself);
}

TEST_F(JobInspectionTest, AConnectionThatNobodyHasAcceptedYetIsTheJobsOwnIfItsOtherEndIs) {
  for (bool inside : {true, false}) {
    UniqueFd listener(Listener());
    ASSERT_TRUE(listener.valid());
    UniqueFd outside_client(inside ? -1 : ConnectedTo(listener.get()));
    TestChild child(
        [&] { return inside ? ConnectedTo(listener.get()) >= 0 : ::close(outside_client.Release()) == 0; });
    ASSERT_TRUE(child.prepared());
    auto job = InspectJob(child.pid(), 0, 0);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(job->listens_on_tcp);
    EXPECT_EQ(job->tcp_connections, inside ? 1u : 0u);
    EXPECT_EQ(job->connected_to_itself, inside);
  }
}

TEST_F(JobInspectionTest, StandardDescriptorsAreSorted) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::string log = Path("log");
  TestChild child([&] {
    int null = ::open("/dev/null", O_RDONLY), file = ::open(log.c_str(), O_WRONLY | O_CREAT, 0600);
    return ::dup2(null, 0) == 0 && ::dup2(ends[1], 1) == 1 && ::dup2(file, 2) == 2;
  });
  ASSERT_TRUE(child.prepared());
  auto job = InspectJob(child.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_THAT(job->stdio, SizeIs(3));
  EXPECT_EQ(job->stdio[0].kind, "null");
  EXPECT_FALSE(job->stdio[0].writable);
  EXPECT_EQ(job->stdio[1].kind, "pipe");
  EXPECT_EQ(job->stdio[1].resource, job->stdio[1].path);
  EXPECT_THAT(job->stdio[1].resource, HasSubstr("pipe:["));
  EXPECT_EQ(job->stdio[2].kind, "file");
  EXPECT_EQ(job->stdio[2].path, log);
  EXPECT_TRUE(job->stdio[2].writable);
}

// As the hook's channel, or connections of a server that has many.
bool HasChannel(int type) {
  int ends[2];
  return ::socketpair(AF_UNIX, type, 0, ends) == 0 && ::dup2(ends[0], v1::kControlDescriptor) >= 0 &&
         ::dup2(ends[1], v1::kControlPeer) >= 0;
}

TEST_F(JobInspectionTest, ConnectionsThatHaveTheNumbersOfTheHooksChannelAreNone) {
  TestChild server([] { return HasChannel(SOCK_STREAM); });
  ASSERT_TRUE(server.prepared());
  auto job = InspectJob(server.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->control_sockets, IsEmpty());
  EXPECT_EQ(job->hook_process, 0);
  EXPECT_TRUE(absl::IsNotFound(LetHeldJobGoOn(server.pid())));
  TestChild held([] { return HasChannel(SOCK_SEQPACKET); });
  ASSERT_TRUE(held.prepared());
  job = InspectJob(held.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->control_sockets, SizeIs(2));
  EXPECT_EQ(job->hook_process, held.pid());
  EXPECT_TRUE(LetHeldJobGoOn(held.pid()).ok());
}

TEST_F(JobInspectionTest, SeveralHeldProcessesAreRefused) {
  const auto with_child = [](bool of_its_own) {
    return [of_its_own] {
      if (!HasChannel(SOCK_SEQPACKET)) return false;
      int ready[2];
      char byte = 0;
      if (::setsid() < 0 || ::pipe(ready) != 0) return false;
      if (::fork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if ((of_its_own && !HasChannel(SOCK_SEQPACKET)) || ::write(ready[1], &byte, 1) != 1) ::_exit(1);
        for (;;) ::pause();
      }
      return ::read(ready[0], &byte, 1) == 1;
    };
  };
  TestChild two(with_child(true));
  EXPECT_THAT(Obstacle(two), HasSubstr("both wait in ready()"));
  TestChild forked(with_child(false));
  ASSERT_TRUE(forked.prepared());
  const auto job = InspectJob(forked.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->hook_process, forked.pid());
}

TEST_F(JobInspectionTest, TreeIsListedParentsFirstWithItsMemory) {
  constexpr size_t kBytes = 16 << 20;
  TestChild child([&] {
    if (::setsid() < 0 || ::chdir(folder_.path().c_str()) != 0) return false;
    for (int i = 0; i < 2; ++i) {
      int ready[2];
      char byte = 0;
      if (::pipe(ready) != 0) return false;
      if (::fork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
        for (;;) ::pause();
      }
      if (::read(ready[0], &byte, 1) != 1) return false;
    }
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED && std::memset(memory, 1, kBytes) == memory;
  });
  ASSERT_TRUE(child.prepared());
  auto job = InspectJob(child.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_THAT(job->processes, SizeIs(3));
  EXPECT_EQ(job->processes[0].pid, child.pid());
  for (size_t i : {1u, 2u}) EXPECT_EQ(job->processes[i].parent, child.pid());
  size_t threads = 0;
  for (pid_t pid : job->pids()) threads += ListDirectory("/proc/" + std::to_string(pid) + "/task")->size();
  EXPECT_EQ(job->threads(), threads);
  EXPECT_GE(job->processes[0].private_bytes, kBytes);
  EXPECT_GE(job->private_bytes(), job->processes[0].private_bytes);
  EXPECT_FALSE(job->session_outside);
  EXPECT_EQ(job->working_directory, folder_.path());
  EXPECT_THAT(job->device_users, IsEmpty());
}

// A stranger that hangs with its memory's lock held would keep who reads that from ever coming back.
TEST_F(JobInspectionTest, NothingIsReadOfTheMemoryOfStrangers) {
  TestChild job, stranger;
  const UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  std::map<int, std::string> watched;
  for (const char* name : {"cmdline", "environ", "maps", "smaps", "auxv"}) {
    for (const pid_t pid : {job.pid(), stranger.pid()}) {
      const std::string path = absl::StrCat("/proc/", pid, "/", name);
      const int number = ::inotify_add_watch(watch.get(), path.c_str(), IN_OPEN);
      ASSERT_GE(number, 0) << path;
      watched[number] = path;
    }
  }
  const auto inspected = InspectJob(job.pid(), 0, 0);
  ASSERT_TRUE(inspected.ok()) << inspected.status();
  std::set<std::string> opened;
  alignas(inotify_event) char events[4096];
  ssize_t n;
  while ((n = ::read(watch.get(), events, sizeof events)) > 0) {
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      opened.insert(watched[event->wd]);
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
  EXPECT_THAT(opened, ElementsAre(absl::StrCat("/proc/", job.pid(), "/cmdline")));
}

TEST_F(JobInspectionTest, SessionOfAnotherIsNoticed) {
  TestChild child;
  auto job = InspectJob(child.pid(), 0, 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->session_outside);
}

TEST_F(JobInspectionTest, JobIdNamesOneProcess) {
  TestChild a, b;
  ProcessInfo of_a = ReadProcess(a.pid()).value(), of_b = ReadProcess(b.pid()).value();
  EXPECT_EQ(JobId("boot", of_a), JobId("boot", ReadProcess(a.pid()).value()));
  EXPECT_NE(JobId("boot", of_a), JobId("boot", of_b));
  EXPECT_NE(JobId("boot", of_a), JobId("another boot", of_a));
  ProcessInfo later = of_a;
  later.start_ticks += 1;
  EXPECT_NE(JobId("boot", of_a), JobId("boot", later));
}

}  // namespace
}  // namespace rekindle::ckpt
