#include "criu/job_namespaces.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/log.h"
#include "base/open_in_root.h"
#include "base/parallel.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "criu/enter_mounts.h"
#include "criu/kernel_facts.h"

namespace rekindle::criu {
namespace {

struct NamespaceKind {
  const char* name;
  int flag;
};
constexpr NamespaceKind kKinds[] = {{"pid", CLONE_NEWPID}, {"mnt", CLONE_NEWNS},
                                    {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC},
                                    {"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}};
constexpr int kAllKinds =
    CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

// Empty: the process has gone.
std::string NamespaceOf(const std::string& process, const char* kind) {
  char target[64] = {};
  const ssize_t n =
      ::readlink(absl::StrCat("/proc/", process, "/ns/", kind).c_str(), target, sizeof target - 1);
  return n > 0 ? std::string(target, static_cast<size_t>(n)) : "";
}

std::vector<pid_t> Numbers(pid_t pid) { return NamespaceNumbers(absl::StrCat(pid)); }

absl::Status Rootless(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(
      what,
      ": it has a user namespace of its own (a rootless container), which CRIU can't work in from "
      "outside: run the container without one"));
}

absl::Status HasGone(pid_t process) {
  return absl::NotFoundError(absl::StrCat("there is no process ", process, " any more"));
}

std::string PathOf(pid_t process, const char* kind) { return absl::StrCat("/proc/", process, "/ns/", kind); }

bool IsSame(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Whoever made one in a user namespace of his own may mount there what he likes.
bool BelongsToOurUsers(int space) {
  const UniqueFd owner(::ioctl(space, NS_GET_USERNS));
  struct stat its, ours;
  return owner.valid() && ::fstat(owner.get(), &its) == 0 && ::stat("/proc/self/ns/user", &ours) == 0 &&
         IsSame(its, ours);
}

absl::Status OnAThread(absl::FunctionRef<void()> work) {
  return CatchNoMoreThreads([&] {
    std::thread(work).join();
    return absl::OkStatus();
  });
}

}  // namespace

bool IsInitOfItsPidNamespace(pid_t pid) {
  const std::vector<pid_t> numbers = Numbers(pid);
  return !numbers.empty() && numbers.back() == 1;
}

bool HasOurPids(pid_t pid) { return NamespaceOf(absl::StrCat(pid), "pid") == NamespaceOf("self", "pid"); }

absl::Status JobNamespaces::Find(pid_t process, absl::string_view what, int kinds) {
  absl::StatusOr<UniqueFd> root = OpenProcess(process);
  RK_RETURN_IF_ERROR(Annotate(root.status(), absl::StrCat("looking at the namespaces of process ", process)));
  std::map<std::string, std::string> its;
  for (const char* kind : {"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"})
    its[kind] = NamespaceOf(absl::StrCat(process), kind);
  UniqueFd mounts(::open(PathOf(process, "mnt").c_str(), O_RDONLY | O_CLOEXEC));
  const bool has_gone =
      std::any_of(its.begin(), its.end(), [](const auto& kind) { return kind.second.empty(); });
  // Else all that is of who has its number by now.
  if (has_gone || !mounts.valid() || ::syscall(SYS_pidfd_send_signal, root->get(), 0, nullptr, 0) != 0)
    return HasGone(process);
  if (its["user"] != NamespaceOf("self", "user")) return Rootless(what);
  pid_ = process;
  pid_namespace_ = its["pid"];
  has_our_pids_ = pid_namespace_ == NamespaceOf("self", "pid");
  has_our_network_ = its["net"] == NamespaceOf("self", "net");
  for (const NamespaceKind& kind : kKinds) {
    if ((kinds & kind.flag) != 0 && its[kind.name] != NamespaceOf("self", kind.name)) flags_ |= kind.flag;
  }
  if (enters_mounts()) {
    // It may have gone into another since its link was read.
    if (!BelongsToOurUsers(mounts.get())) return Rootless(what);
    mounts_ = std::move(mounts);
  }
  root_ = *std::move(root);
  return absl::OkStatus();
}

absl::StatusOr<JobNamespaces> JobNamespaces::Of(pid_t root) {
  JobNamespaces job;
  const std::string pid_namespace = NamespaceOf(absl::StrCat(root), "pid");
  if (pid_namespace.empty()) return job;
  int kinds = kAllKinds;
  if (HasOurPids(root)) {
    if (NamespaceOf(absl::StrCat(root), "mnt") == NamespaceOf("self", "mnt")) return job;
    kinds = CLONE_NEWNS;
  } else if (const std::vector<pid_t> numbers = Numbers(root); numbers.empty() || numbers.back() == 1) {
    return job;
  }
  RK_RETURN_IF_ERROR(job.Find(root, absl::StrCat("capturing process ", root), kinds));
  return job;
}

absl::StatusOr<JobNamespaces> JobNamespaces::Around(pid_t process) {
  const std::string pid_namespace = NamespaceOf(absl::StrCat(process), "pid");
  if (pid_namespace.empty()) return absl::NotFoundError(absl::StrCat("there is no process ", process));
  if (pid_namespace == NamespaceOf("self", "pid")) {
    return absl::InvalidArgumentError(
        absl::StrCat("process ", process,
                     " is in no container, or in one that shares the machine's PIDs (docker "
                     "--pid=host, a pod's hostPID: true): it has no PID namespace of its own"));
  }
  JobNamespaces container;
  RK_RETURN_IF_ERROR(
      container.Find(process, absl::StrCat("going into the container of process ", process), kAllKinds));
  return container;
}

bool JobNamespaces::enters_mounts() const { return (flags_ & CLONE_NEWNS) != 0; }

bool JobNamespaces::IsAmongItsMounts(pid_t process) const {
  struct stat its, entered;
  return ::stat(PathOf(process, "mnt").c_str(), &its) == 0 && ::fstat(mounts_.get(), &entered) == 0 &&
         IsSame(its, entered);
}

bool JobNamespaces::HasItselfInProc() const {
  if (has_our_pids_) return true;
  const pid_t number = Inside(pid_);
  std::string seen;
  // At the root of its mounts: a job may have one of its own (chroot).
  const absl::Status looked = Within([&] {
    seen = NamespaceOf(absl::StrCat(number), "pid");
    return absl::OkStatus();
  });
  return !looked.ok() || seen == pid_namespace_ || NamespaceOf(absl::StrCat(pid_), "pid").empty();
}

void JobNamespaces::MountsAreTheMachines() { runs_programs_ = has_our_pids_ && !has_our_network_; }

pid_t JobNamespaces::Inside(pid_t pid) const {
  if (has_our_pids_) return pid;
  const std::vector<pid_t> numbers = Numbers(pid);
  return numbers.empty() ? 0 : numbers.back();
}

absl::StatusOr<pid_t> JobNamespaces::Outside(pid_t inside) const {
  if (has_our_pids_) {
    const std::string its = NamespaceOf(absl::StrCat(inside), "pid");
    if (its.empty() && absl::IsNotFound(ReadProcessStat(inside).status()))
      return absl::NotFoundError(absl::StrCat("process ", inside, " has ended"));
    if (its.empty())
      return absl::PermissionDeniedError(absl::StrCat("process ", inside, " may not be looked at"));
    if (its == NamespaceOf("self", "pid")) return inside;
    return absl::NotFoundError(
        absl::StrCat("process ", inside, " has another number in its own PID namespace"));
  }
  for (const bool again : {false, true}) {
    // Those that it has made since.
    if (again) LearnNumbers();
    absl::MutexLock lock(&numbers_->mutex);
    const auto known = numbers_->outside.find(inside);
    if (known != numbers_->outside.end() && LivesThereAs(known->second, inside)) return known->second;
  }
  return absl::NotFoundError(
      absl::StrCat("no process has the number ", inside, " in the PID namespace of process ", pid_));
}

bool JobNamespaces::LivesThereAs(pid_t pid, pid_t inside) const {
  return NamespaceOf(absl::StrCat(pid), "pid") == pid_namespace_ && Inside(pid) == inside;
}

void JobNamespaces::LearnNumbers() const {
  if (has_our_pids_) return;
  absl::flat_hash_map<pid_t, pid_t> outside;
  for (pid_t pid : ListProcesses()) {
    if (NamespaceOf(absl::StrCat(pid), "pid") != pid_namespace_) continue;
    if (const pid_t inside = Inside(pid); inside != 0) outside[inside] = pid;
  }
  absl::MutexLock lock(&numbers_->mutex);
  numbers_->outside = std::move(outside);
}

std::vector<std::pair<pid_t, pid_t>> JobNamespaces::AllNumbers() const {
  std::vector<std::pair<pid_t, pid_t>> all;
  for (pid_t pid : ListProcesses()) {
    if (NamespaceOf(absl::StrCat(pid), "pid") != pid_namespace_) continue;
    const auto threads = ThreadsOf(pid);
    if (!threads.ok()) continue;  // it has gone
    for (const pid_t thread : *threads) {
      const std::vector<pid_t> numbers = NamespaceNumbers(absl::StrCat(pid, "/task/", thread));
      if (!numbers.empty()) all.emplace_back(numbers.back(), numbers.front());
    }
  }
  return all;
}

absl::Status JobNamespaces::Enter(int flags) const {
  const int others = flags & ~CLONE_NEWNS;
  if (::unshare(CLONE_FS) == 0 && (others == 0 || ::setns(root_.get(), others) == 0) &&
      (others == flags || ::setns(mounts_.get(), CLONE_NEWNS) == 0)) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("entering the namespaces of process ", pid_));
}

void JobNamespaces::LearnKernel(const Installation& criu, const std::string& directory) {
  absl::StatusOr<std::string> known = criu::LearnKernel(criu.command, directory);
  if (known.ok()) {
    known_ = *std::move(known);
  } else if (enters_mounts()) {
    Log(LogLevel::kWarning, absl::StrCat("CRIU must find out about the kernel within the mounts of process ",
                                         pid_, ": ", known.status().message()));
  }
}

absl::StatusOr<Subprocess> JobNamespaces::Start(SubprocessOptions options) const {
  if (options.environment.empty()) options.environment = EnvironmentWith({});
  if (!known_.empty()) options.environment.push_back(absl::StrCat(ENTERED_KNOWN, "=", known_));
  if (!entered()) return Subprocess::Start(options);
  if (enters_mounts()) {
    int number = 3;
    for (const auto& [from, to] : options.descriptors) number = std::max(number, to + 1);
    options.descriptors.emplace_back(mounts_.get(), number);
    options.environment.push_back(absl::StrCat(ENTERED_MOUNTS, "=", number));
    if (runs_programs_) options.environment.push_back(ENTERED_RUNS "=1");
  }
  absl::StatusOr<Subprocess> started = absl::InternalError("not started");
  // A thread can enter them alone, and what it starts is born there.
  RK_RETURN_IF_ERROR(OnAThread([&] {
    if (absl::Status status = Enter(flags_ & ~CLONE_NEWNS); !status.ok()) {
      started = std::move(status);
    } else {
      started = Subprocess::Start(options);
    }
  }));
  return started;
}

absl::StatusOr<std::string> JobNamespaces::PluginFolder(const std::string& plugin,
                                                        const std::string& working_directory,
                                                        std::vector<std::string>* environment) const {
  const size_t slash = plugin.rfind('/');
  if (!enters_mounts()) return plugin.substr(0, slash);
  // CRIU looks for names in a folder first.
  RK_RETURN_IF_ERROR(
      WriteFileAtomically(absl::StrCat(working_directory, "/", plugin.substr(slash + 1)), "", 0600));
  environment->push_back(absl::StrCat(ENTERED_PLUGIN, "=", plugin));
  return std::string(".");
}

absl::Status JobNamespaces::Within(absl::FunctionRef<absl::Status()> work) const {
  if (!entered()) return work();
  RememberOwnDescriptors();
  absl::Status result;
  // The PID namespace would be that of its children alone.
  RK_RETURN_IF_ERROR(OnAThread([&] {
    result = Enter(flags_ & ~CLONE_NEWPID);
    if (result.ok()) result = work();
  }));
  return result;
}

}  // namespace rekindle::criu
