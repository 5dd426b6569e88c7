#include "criu/test_support.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "criu/installation.h"

namespace rekindle::criu {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    // Without its surroundings a test can say nothing; there is no skipping.
    [[maybe_unused]] ssize_t n = ::write(2, value.status().message().data(), value.status().message().size());
    std::abort();
  }
  return std::move(value).value();
}

}  // namespace

TestJob::TestJob(uint32_t children)
    : folder_(OrDie(TemporaryDirectory::Make("/dev/shm", "rekindle-criu-test-"))) {
  std::string path = folder() + "/shared";
  std::string zeros(4096, '\0');
  UniqueFd file = OrDie(OpenFile(path, O_RDWR | O_CREAT, 0600));
  if (!WriteFully(file.get(), zeros.data(), zeros.size(), path).ok()) std::abort();
  words_ = static_cast<std::atomic<uint32_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  words_[2] = children;
  SubprocessOptions options;
  options.argv = {REKINDLE_CRIU_TEST_JOB, path};
  options.new_session = true;
  pid_ = OrDie(Subprocess::Start(options)).Release();
}

TestJob::~TestJob() {
  words_[1] = 1;  // so that children end too
  Kill();
  ::munmap(words_, 4096);
}

bool TestJob::GoesOn() {
  for (int i = 0; i < 2; ++i) {
    uint32_t seen = counter();
    timespec at_most{20, 0};
    ::syscall(SYS_futex, words_, FUTEX_WAIT, seen, &at_most, nullptr, 0);
    if (counter() == seen) return false;
  }
  return true;
}

void TestJob::Kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void TestJob::Exit(uint32_t status) {
  words_[1] = status;
  ::syscall(SYS_futex, words_ + 1, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

int TestJob::Reap() {
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

absl::Status MemoryConsumer::Drain(const std::string& file_name, UniqueFd pipe) {
  std::string content;
  std::string buffer(1 << 20, '\0');
  for (;;) {
    ssize_t n = ::read(pipe.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, file_name);
    if (n == 0) break;
    content.append(buffer.data(), static_cast<size_t>(n));
  }
  absl::MutexLock lock(&mutex_);
  files_[file_name] = std::move(content);
  return absl::OkStatus();
}

std::map<std::string, std::string> MemoryConsumer::TakeFiles() {
  absl::MutexLock lock(&mutex_);
  return std::move(files_);
}

StreamedDump DumpStreamed(DumpOptions options, const std::string& folder, ImageFileConsumer* consumer) {
  StreamedDump dump;
  options.images_directory = folder;
  Installation criu = OrDie(FindCriu());
  std::unique_ptr<CaptureServer> server = OrDie(CaptureServer::Listen(folder, consumer));
  SubprocessOptions process;
  process.argv = FullCommand(criu, DumpArguments(options));
  Subprocess child = OrDie(Subprocess::Start(process));
  dump.served = server->Serve(child.pidfd());
  dump.exit = OrDie(child.Wait());
  if (absl::StatusOr<std::string> log = ReadFile(folder + "/" + options.log_file); log.ok()) dump.log = *log;
  return dump;
}

std::set<pid_t> OwnChildren() {
  std::set<pid_t> children;
  for (pid_t pid : ListProcesses()) {
    auto stat = ReadProcessStat(pid);
    if (stat.ok() && stat->parent == ::getpid()) children.insert(pid);
  }
  return children;
}

bool ProcessExists(pid_t pid) { return ::kill(pid, 0) == 0; }

}  // namespace rekindle::criu
