#include "restore/clone_environment.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/children.h"
#include "base/companion_program.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "rekindle/v1/control_channel.h"
#include "restore/cgroup.h"

namespace rekindle::restore {
namespace {

using criu::EnvironmentCheck;

// Fewer than these is little for a machine that runs clones.
constexpr uint64_t kManyNamespaces = 1000;
constexpr uint64_t kManyFiles = 4096;
// In the daemon or the pager, whichever has more, for a copy with one process.
constexpr uint64_t kFilesOfACopy = 8;
// The two of the control channel, room above them while they are made, and for the one that ends with that.
constexpr uint64_t kFilesForTheHook = v1::kControlPeer + 4;

struct Feature {
  uint64_t bit;
  const char* name;
};
constexpr Feature kFeatures[] = {
    {UFFD_FEATURE_EVENT_FORK, "forks"},
    {UFFD_FEATURE_EVENT_REMAP, "mremap"},
    {UFFD_FEATURE_EVENT_REMOVE, "MADV_DONTNEED"},
    {UFFD_FEATURE_EVENT_UNMAP, "munmap"},
    {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write protection"},
};

// The steps of CheckSandbox's process; it ends with the one that failed.
enum Step { kDone, kPrivateMounts, kProc, kOpenNextPid, kSetNextPid, kSteps };
constexpr const char* kStepNames[kSteps] = {"", "keeping its mounts to itself", "mounting /proc in it",
                                            "opening ns_last_pid in it", "choosing a PID in it"};

// Of a copy of this process with many threads: system calls alone.
int TrySandbox() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return kPrivateMounts;
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) return kProc;
  const int file = ::open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
  if (file < 0) return kOpenNextPid;
  return ::write(file, "1000", 4) == 4 ? kDone : kSetNextPid;
}

std::string CureOf(int step) {
  if (step == kOpenNextPid || step == kSetNextPid) {
    return "use a kernel with CONFIG_CHECKPOINT_RESTORE; without it there are clones but no copies of "
           "templates";
  }
  return "run as root; a container must have cap_sys_admin and may hide nothing below its /proc "
         "(--privileged, or unmasked system paths)";
}

}  // namespace

std::vector<std::string> MissingUserfaultfdFeatures(uint64_t features) {
  std::vector<std::string> missing;
  for (const Feature& feature : kFeatures) {
    if ((features & feature.bit) == 0) missing.emplace_back(feature.name);
  }
  return missing;
}

EnvironmentCheck CheckUserfaultfdFeatures() {
  EnvironmentCheck check{"userfaultfd_events", false, "", "", false};
  UniqueFd asked(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  uffdio_api api{};
  api.api = UFFD_API;
  if (!asked.valid() || ::ioctl(asked.get(), UFFDIO_API, &api) != 0) {
    check.detail = std::string(ErrnoStatus(errno, "asking a userfaultfd for its features").message());
    check.cure = "see userfaultfd";
    return check;
  }
  const std::vector<std::string> missing = MissingUserfaultfdFeatures(api.features);
  if (!missing.empty()) {
    check.detail = absl::StrCat("the kernel does not know: ", absl::StrJoin(missing, ", "));
    check.cure = "clones need Linux 5.7 or newer with CONFIG_USERFAULTFD; restores without --clone do not";
    return check;
  }
  // It is told of forks only on behalf of those who may trace.
  UniqueFd used(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  uffdio_api wanted{};
  wanted.api = UFFD_API;
  for (const Feature& feature : kFeatures) wanted.features |= feature.bit;
  check.ok = used.valid() && ::ioctl(used.get(), UFFDIO_API, &wanted) == 0;
  check.detail = check.ok ? "forks, mremap, munmap and MADV_DONTNEED of copies are told"
                          : std::string(ErrnoStatus(errno, "turning on a userfaultfd's events").message());
  if (!check.ok) check.cure = "run as root; in a container add cap_sys_ptrace to its capabilities";
  return check;
}

EnvironmentCheck CheckSandbox() {
  EnvironmentCheck check{"sandbox", false, "", "", false};
  int pidfd = -1;
  clone_args arguments{};
  arguments.flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD;
  arguments.pidfd = reinterpret_cast<uintptr_t>(&pidfd);
  // Without a signal: whoever waits for any child of this process does not see it.
  long pid;
  {
    MakingChild making;
    pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid == 0) ::_exit(TrySandbox());
    if (pid > 0) NoteChild(static_cast<pid_t>(pid));
  }
  if (pid < 0) {
    check.detail = std::string(ErrnoStatus(errno, "making namespaces for a sandbox").message());
    check.cure = errno == ENOSPC ? "see namespaces" : CureOf(kDone);
    return check;
  }
  UniqueFd process(pidfd);
  int status = 0;
  while (::waitpid(static_cast<pid_t>(pid), &status, __WALL) < 0 && errno == EINTR) {
  }
  const int step = WIFEXITED(status) ? std::min<int>(WEXITSTATUS(status), kSteps - 1) : kPrivateMounts;
  check.ok = step == kDone;
  check.detail = check.ok ? "namespaces can be made, and PIDs chosen in them"
                          : absl::StrCat("a sandbox can't be made: ", kStepNames[step], " failed");
  if (!check.ok) check.cure = CureOf(step);
  return check;
}

EnvironmentCheck CheckNamespaceLimits(const std::string& directory) {
  EnvironmentCheck check{"namespaces", true, "", "", false};
  uint64_t least = UINT64_MAX;
  std::string of;
  for (const char* kind : {"pid", "mnt", "ipc", "uts", "net"}) {
    const std::string name = absl::StrCat("max_", kind, "_namespaces");
    absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/", name));
    uint64_t limit = 0;
    if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &limit)) {
      // Before Linux 4.9 there was no limit, but there was none of what clones need either.
      check.ok = false;
      check.detail = absl::StrCat(directory, "/", name, " is not there");
      check.cure = absl::StrCat("use a kernel with namespaces of all kinds (", kind, ")");
      return check;
    }
    if (limit < least) {
      least = limit;
      of = name;
    }
  }
  check.ok = least >= kManyNamespaces;
  check.detail = absl::StrCat("at most ", least, " sandboxes side by side (user.", of, ")");
  if (!check.ok) check.cure = absl::StrCat("sysctl -w user.", of, "=100000");
  return check;
}

EnvironmentCheck CheckCgroups(const std::string& mounts) {
  EnvironmentCheck check{"cgroups", false, "", "", false};
  absl::StatusOr<std::string> found = Cgroup::Examine(mounts);
  check.ok = found.ok();
  check.detail = found.ok() ? *found : std::string(found.status().message());
  if (!check.ok)
    check.cure = "only --memory, --cpus and --processes need it: mend what is said here, or leave them out";
  return check;
}

EnvironmentCheck CheckOpenFiles(uint64_t hard_limit) {
  EnvironmentCheck check{"open_files", hard_limit >= kManyFiles, "", "", false};
  if (hard_limit < kFilesForTheHook) {
    check.detail = absl::StrCat("at most ", hard_limit, ": jobs that the hook holds need descriptors up to ",
                                kFilesForTheHook);
  } else if (hard_limit == RLIM_INFINITY) {
    check.detail = "not limited";
  } else {
    check.detail = absl::StrCat("at most ", hard_limit, ": enough for ", hard_limit / kFilesOfACopy,
                                " copies side by side, or so");
  }
  if (!check.ok) {
    check.cure = "start rekindled with a higher hard limit (LimitNOFILE=65536 in its unit, ulimit -Hn 65536)";
  }
  return check;
}

EnvironmentCheck CheckPidfdGetfd() {
  EnvironmentCheck check{"pidfd_getfd", false, "", "", false};
  UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  UniqueFd taken(self.valid() ? static_cast<int>(::syscall(SYS_pidfd_getfd, self.get(), self.get(), 0)) : -1);
  check.ok = taken.valid();
  check.detail = check.ok ? "works" : std::string(ErrnoStatus(errno, "failed").message());
  if (!check.ok) {
    check.cure =
        "held jobs, and output to the caller's terminal through the daemon, need Linux 5.6 and in a "
        "container a "
        "seccomp profile that allows pidfd_getfd";
  }
  return check;
}

EnvironmentCheck CheckPrograms() {
  EnvironmentCheck check{"programs", true, "", "", false};
  struct Program {
    const char* name;
    bool required;
  };
  // Without the last two there is no checkpoint, without the others no clone.
  constexpr Program kPrograms[] = {{"rekindle-sandbox", false},
                                   {"rekindle-pager", false},
                                   {"rekindle-criu-restore.so", false},
                                   {"rekindle-dump-gate", true},
                                   {"rekindle-criu-preload.so", true}};
  std::vector<std::string> missing, found;
  for (const Program& program : kPrograms) {
    (FindCompanionProgram(program.name).ok() ? found : missing).emplace_back(program.name);
    if (missing.empty() || missing.back() != program.name) continue;
    check.ok = false;
    check.required |= program.required;
  }
  check.detail =
      check.ok ? absl::StrJoin(found, ", ") : absl::StrCat("not found: ", absl::StrJoin(missing, ", "));
  if (!check.ok) check.cure = "install Rekindle again, all of it (cmake --install, or the package)";
  return check;
}

std::vector<EnvironmentCheck> CheckCloneEnvironment() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return {CheckPrograms(),
          CheckUserfaultfdFeatures(),
          CheckSandbox(),
          CheckNamespaceLimits("/proc/sys/user"),
          CheckCgroups("/proc/self/mounts"),
          CheckOpenFiles(files.rlim_max),
          CheckPidfdGetfd()};
}

}  // namespace rekindle::restore
