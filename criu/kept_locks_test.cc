// Real CRIU, and jobs with POSIX locks on files that they have mapped, restored.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/process_stat.h"
#include "base/subprocess.h"
#include "criu/installation.h"
#include "criu/restore_session.h"
#include "criu/test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::HasSubstr;

// Two processes with a lock each on one file, which both have mapped; the parent has another lock on a file
// that is not mapped, and may be stopped. They say when they are ready, and end with what they are told.
constexpr char kJob[] = R"(
import fcntl, mmap, os, signal, sys, time
folder = sys.argv[1]
def locked(name, start, length, kind=fcntl.LOCK_EX):
    file = open(folder + "/" + name, "r+b", buffering=0)
    fcntl.lockf(file, kind, length, start)
    return file
mapped = open(folder + "/mapped", "r+b", buffering=0)
memory = mmap.mmap(mapped.fileno(), 4096)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
ends = os.pipe()
child = os.fork()
files = [locked("mapped", 0, 10), locked("other", 0, 0)] if child else [locked("mapped", 10, 10),
                                                                       locked("mapped", 100, 28, fcntl.LOCK_SH)]
if not child:
    os.close(1)
    os.write(ends[1], b"x")
    signal.sigwait([signal.SIGUSR1])
    os._exit(memory[0])
os.read(ends[0], 1)
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGTERM)
os.close(1)
signal.sigwait([signal.SIGUSR1])
os.kill(child, signal.SIGUSR1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(code + (10 if signal.SIGTERM in signal.sigpending() else 0))
)";

class KeptLocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to run CRIU";
    auto criu = FindCriu();
    ASSERT_TRUE(criu.ok()) << criu.status();
    criu_ = *criu;
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // its PIDs are free once all are reaped
    auto folder = TemporaryDirectory::Make("/tmp", "rekindle-kept-locks.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = folder->Release();
    images_ = folder_ + "/images";
    ASSERT_EQ(::mkdir(images_.c_str(), 0700), 0);
    for (const char* name : {"mapped", "other"}) {
      ASSERT_TRUE(WriteFileAtomically(File(name), std::string("\7") + std::string(4095, '\0')).ok());
    }
  }
  void TearDown() override {
    Kill();
    if (!folder_.empty()) RemoveTree(folder_).IgnoreError();
  }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }

  // Its image is in images_, and it has ended. `stopped`: as by SIGSTOP.
  void TakeImage(bool stopped = false, const std::vector<std::string>& arguments = {}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    UniqueFd says(ends[0]), writes(ends[1]);
    SubprocessOptions options;
    options.argv = {"python3", "-c", kJob, folder_};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.descriptors = {{writes.get(), 1}};
    options.new_session = true;
    auto started = Subprocess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    root_ = started->Release();
    writes.Reset();
    char nothing;
    ASSERT_EQ(::read(says.get(), &nothing, 1), 0);
    ASSERT_EQ(Locks(), AllLocks());
    if (stopped) {
      ::kill(root_, SIGSTOP);
      int status;
      ASSERT_EQ(::waitpid(root_, &status, WUNTRACED), root_);
    }
    MemoryConsumer consumer;
    DumpOptions dump_options;
    dump_options.pid = root_;
    dump_options.file_locks = true;
    StreamedDump dump = DumpStreamed(dump_options, folder_, &consumer);
    ASSERT_TRUE(dump.exit.ok()) << dump.log;
    for (const auto& [name, content] : consumer.TakeFiles())
      ASSERT_TRUE(WriteFileAtomically(images_ + "/" + name, content).ok());
    Kill();
    ASSERT_THAT(Locks(), ::testing::IsEmpty());
  }

  absl::Status Restore(RestoreObserver* observer = nullptr) {
    RestoreOptions options;
    options.images_directory = images_;
    options.file_locks = true;
    auto tree = RunRestore(criu_, options, JobNamespaces(), observer, -1);
    if (tree.ok()) root_ = tree->root;
    return tree.status();
  }

  // Those that this process would have to wait for.
  std::vector<std::pair<std::string, short>> Locks() const {
    const std::vector<std::pair<std::string, off_t>> asked = {
        {"mapped", 0}, {"mapped", 10}, {"mapped", 20}, {"mapped", 100}, {"other", 5}};
    std::vector<std::pair<std::string, short>> found;
    for (const auto& [name, at] : asked) {
      const UniqueFd file(::open(File(name).c_str(), O_RDWR | O_CLOEXEC));
      struct flock query = {};
      query.l_type = F_WRLCK;
      query.l_whence = SEEK_SET;
      query.l_start = at;
      query.l_len = 1;
      EXPECT_EQ(::fcntl(file.get(), F_GETLK, &query), 0);
      if (query.l_type == F_UNLCK) continue;
      found.emplace_back(name + " " + std::to_string(query.l_start) + " " + std::to_string(query.l_len),
                         query.l_type);
    }
    return found;
  }
  static std::vector<std::pair<std::string, short>> AllLocks() {
    return {{"mapped 0 10", F_WRLCK},
            {"mapped 10 10", F_WRLCK},
            {"mapped 100 28", F_RDLCK},
            {"other 0 0", F_WRLCK}};
  }

  // Its exit status, at our word.
  int End() {
    ::kill(root_, SIGUSR1);
    int status = 0;
    if (::waitpid(root_, &status, 0) != root_) return -1;
    root_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  void Kill() {
    if (root_ <= 0) return;
    ::kill(-root_, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) continue;
    root_ = -1;
  }

  Installation criu_;
  std::string folder_, images_;
  pid_t root_ = -1;
};

TEST_F(KeptLocksTest, OfFilesThatAreMapped) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  const absl::Status restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_EQ(Locks(), AllLocks());
  EXPECT_EQ(End(), 7);
  EXPECT_THAT(Locks(), ::testing::IsEmpty());
}

TEST_F(KeptLocksTest, PendingSignalsStayPending) {
  ASSERT_NO_FATAL_FAILURE(TakeImage(false, {"with a signal"}));
  const absl::Status restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_EQ(Locks(), AllLocks());
  EXPECT_EQ(End(), 17);
}

TEST_F(KeptLocksTest, AStoppedJobStaysStopped) {
  ASSERT_NO_FATAL_FAILURE(TakeImage(true));
  const absl::Status restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored;
  int status;
  ASSERT_EQ(::waitpid(root_, &status, WUNTRACED), root_);
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(Locks(), AllLocks());
  ::kill(root_, SIGCONT);
  EXPECT_EQ(End(), 7);
}

// The library as CRIU would have it, in a process without the address space to note locks in.
TEST_F(KeptLocksTest, NoneIsTakenThatCanNotBeNoted) {
  const UniqueFd file(::open(File("other").c_str(), O_RDWR | O_CLOEXEC));
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit little;
    std::string status = ReadFile("/proc/self/status").value_or("");
    little.rlim_cur = std::strtoull(StatusField(status, "VmSize").c_str(), nullptr, 10) * 1024 + (20 << 20);
    little.rlim_max = RLIM_INFINITY;
    if (::setrlimit(RLIMIT_AS, &little) != 0) ::_exit(1);
    void* library = ::dlopen(REKINDLE_CRIU_BOUNDS, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) ::_exit(2);
    const auto call = reinterpret_cast<int (*)(int, int, ...)>(::dlsym(library, "fcntl64"));
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (call(file.get(), F_SETLKW, &lock) == 0) ::_exit(3);
    if (errno != ENOLCK) ::_exit(4);
    // All else is as it was.
    lock.l_type = F_UNLCK;
    ::_exit(call(file.get(), F_SETLKW, &lock) == 0 && call(file.get(), F_GETFD) == FD_CLOEXEC ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST_F(KeptLocksTest, ACriuThatCanNotKeepThemIsRefused) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  criu_.command.insert(criu_.command.begin(), {"env", "-u", "LD_PRELOAD"});
  const absl::Status refused = Restore();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("file locks"));
  EXPECT_THAT(Locks(), ::testing::IsEmpty());
}

// Has a lock of the job's while the job has it not.
class TakesALock : public RestoreObserver {
 public:
  TakesALock(std::string path, bool keeps) : path_(std::move(path)), keeps_(keeps) {}
  absl::Status TasksReady(pid_t) override {
    file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_len = 1;
    took_ = ::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0;
    if (!keeps_) file_.Reset();
    return absl::OkStatus();
  }
  bool took() const { return took_; }

 private:
  const std::string path_;
  const bool keeps_;
  UniqueFd file_;
  bool took_ = false;
};

TEST_F(KeptLocksTest, WhatAnotherHasTakenMeanwhileIsNotGoneWithout) {
  ASSERT_NO_FATAL_FAILURE(TakeImage());
  {
    TakesALock keeps(File("mapped"), true);
    const absl::Status refused = Restore(&keeps);
    ASSERT_TRUE(keeps.took()) << "CRIU keeps this lock: what kept_locks.c is for is gone";
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("another program has taken a file lock"));
  }

  TakesALock gives_back(File("mapped"), false);
  const absl::Status restored = Restore(&gives_back);
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_TRUE(gives_back.took());
  EXPECT_EQ(Locks(), AllLocks());
  EXPECT_EQ(End(), 7);
}

}  // namespace
}  // namespace rekindle::criu
