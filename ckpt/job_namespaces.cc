#include "ckpt/job_namespaces.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"

namespace rekindle::ckpt {
namespace {

struct NamespaceKind {
  const char* name;
  int flag;
};
constexpr NamespaceKind kKinds[] = {{"pid", CLONE_NEWPID}, {"mnt", CLONE_NEWNS},
                                    {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC},
                                    {"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}};

// Empty: the process has gone.
std::string NamespaceOf(const std::string& process, const char* kind) {
  char target[64] = {};
  const ssize_t n =
      ::readlink(absl::StrCat("/proc/", process, "/ns/", kind).c_str(), target, sizeof target - 1);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

// Its numbers in all its PID namespaces, ours first.
std::vector<pid_t> Numbers(pid_t pid) {
  std::vector<pid_t> numbers;
  auto status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  if (!status.ok()) return numbers;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (!absl::StartsWith(line, "NSpid:")) continue;
    for (absl::string_view word : absl::StrSplit(line.substr(6), absl::ByAnyChar("\t "), absl::SkipEmpty())) {
      pid_t number = 0;
      if (absl::SimpleAtoi(word, &number)) numbers.push_back(number);
    }
  }
  return numbers;
}

}  // namespace

bool IsInitOfItsPidNamespace(pid_t pid) {
  const std::vector<pid_t> numbers = Numbers(pid);
  return !numbers.empty() && numbers.back() == 1;
}

absl::StatusOr<JobNamespaces> JobNamespaces::Of(pid_t root) {
  JobNamespaces job;
  job.pid_ = root;
  job.pid_namespace_ = NamespaceOf(absl::StrCat(root), "pid");
  if (job.pid_namespace_.empty() || job.pid_namespace_ == NamespaceOf("self", "pid")) return job;
  const std::vector<pid_t> numbers = Numbers(root);
  if (numbers.empty() || numbers.back() == 1) return job;
  if (NamespaceOf(absl::StrCat(root), "user") != NamespaceOf("self", "user")) {
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", root,
        ": it has a user namespace of its own (a rootless container), and CRIU can dump such a tree only "
        "together with its init: give the PID of the container's first process"));
  }
  for (const NamespaceKind& kind : kKinds) {
    if (NamespaceOf(absl::StrCat(root), kind.name) != NamespaceOf("self", kind.name)) job.flags_ |= kind.flag;
  }
  job.root_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, root, 0)));
  if (!job.root_.valid()) {
    return ErrnoStatus(errno, absl::StrCat("looking at the namespaces of process ", root));
  }
  return job;
}

pid_t JobNamespaces::Inside(pid_t pid) const {
  if (!entered()) return pid;
  const std::vector<pid_t> numbers = Numbers(pid);
  return numbers.empty() ? 0 : numbers.back();
}

absl::StatusOr<pid_t> JobNamespaces::Outside(pid_t inside) const {
  if (!entered()) {
    if (NamespaceOf(absl::StrCat(inside), "pid") == NamespaceOf("self", "pid")) return inside;
    return absl::NotFoundError(
        absl::StrCat("process ", inside, " has another number in its own PID namespace"));
  }
  for (pid_t pid : ListProcesses()) {
    if (NamespaceOf(absl::StrCat(pid), "pid") == pid_namespace_ && Inside(pid) == inside) return pid;
  }
  return absl::NotFoundError(
      absl::StrCat("no process has the number ", inside, " in the PID namespace of process ", pid_));
}

absl::StatusOr<Subprocess> JobNamespaces::Start(const SubprocessOptions& options) const {
  if (!entered()) return Subprocess::Start(options);
  absl::StatusOr<Subprocess> started = absl::InternalError("not started");
  // A thread can enter them alone, and what it starts is born there.
  std::thread inside([&] {
    if (::unshare(CLONE_FS) != 0 || ::setns(root_.get(), flags_) != 0) {
      started = ErrnoStatus(errno, absl::StrCat("entering the namespaces of process ", pid_));
      return;
    }
    started = Subprocess::Start(options);
    if (absl::IsNotFound(started.status())) {
      started = absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", pid_, ": it has a file system of its own (a container), in which ",
          options.argv[0], " is not to be found; give the PID of the container's first process"));
    }
  });
  inside.join();
  return started;
}

}  // namespace rekindle::ckpt
