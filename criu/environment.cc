#include "criu/environment.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/kcmp.h>
#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/capability.h"
#include "base/file.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "criu/failure.h"
#include "criu/kernel_facts.h"

namespace rekindle::criu {
namespace {

std::string ErrorText(int error_number) { return std::string(ErrnoStatus(error_number, "failed").message()); }

EnvironmentCheck CheckInstallation(const absl::StatusOr<Installation>& criu) {
  EnvironmentCheck check{"criu", criu.ok(), "", "", true};
  if (criu.ok()) {
    check.detail = absl::StrCat("CRIU ", criu->version.ToString(), " (", criu->origin, ")");
  } else {
    check.detail = std::string(criu.status().message());
    check.cure =
        "install CRIU 4.2 or newer, or name one in REKINDLE_CRIU; the bundle brings its own, and so does "
        "scripts/setup.sh --criu of Rekindle's sources (Debian, Ubuntu)";
  }
  return check;
}

// What `criu check` says of the kernel.
EnvironmentCheck CheckKernelForCriu(const Installation& criu) {
  EnvironmentCheck check{"criu_check", false, "", "", true};
  std::vector<std::string> argv = criu.command;
  argv.insert(argv.end(), {"check", "--no-default-config"});
  absl::StatusOr<CommandResult> result = RunCommand(argv, absl::Seconds(30));
  if (!result.ok()) {
    check.detail = std::string(result.status().message());
    check.cure = "run `criu check` by hand to see where it stops";
    return check;
  }
  check.ok = result->exit.ok();
  if (check.ok) {
    check.detail = "the kernel has what CRIU needs";
    return check;
  }
  for (absl::string_view line : absl::StrSplit(result->output, '\n')) {
    if (!absl::StrContains(line, "Error") || absl::StrContains(line, "RLIMIT_NOFILE")) continue;
    check.detail = std::string(line);
    break;
  }
  if (check.detail.empty()) check.detail = absl::StrCat("`criu check` ended with ", result->exit.ToString());
  const Diagnosis known = Diagnose(Operation::kDump, result->output);
  check.cure = known.id == "loopback-down" ? known.sentence + " " + known.cure
                                           : "use a kernel with CONFIG_CHECKPOINT_RESTORE and run as root";
  return check;
}

constexpr int kSysAdmin = 21;  // of linux/capability.h

// CRIU itself keeps its probe of the kernel in /run, if that is a tmpfs.
EnvironmentCheck CheckProbeCache() {
  if (HasCapability(kSysAdmin)) {
    return {"kernel_probe_cache", true, "Rekindle keeps CRIU's kernel probe, in its runtime folder", "",
            false};
  }
  if (CriuKeepsKernelFacts()) {
    return {"kernel_probe_cache", true, "/run is a tmpfs: CRIU keeps its kernel probe there", "", false};
  }
  return {"kernel_probe_cache", false,
          "/run is no tmpfs: CRIU probes the kernel at every start (30 ms or so)",
          "mount a tmpfs on /run (systemd does so at boot), or run as root", false};
}

struct Capability {
  int number;
  const char* name;
  bool required;
  const char* purpose;
};

// From linux/capability.h; the newest one is not in older headers.
constexpr Capability kCapabilities[] = {
    {kSysAdmin, "cap_sys_admin", true, "namespaces, mounts and the memory layout of a restored process"},
    {19, "cap_sys_ptrace", true, "freezing and reading other processes"},
    {40, "cap_checkpoint_restore", false, "choosing PIDs without cap_sys_admin"},
    {24, "cap_sys_resource", false, "processes of other users, and limits above the present ones"},
    {12, "cap_net_admin", false, "established TCP connections and own network namespaces"},
    {6, "cap_setgid", true, "giving restored processes their groups"},
    {7, "cap_setuid", true, "giving restored processes their user"},
    {0, "cap_chown", false, "giving restored deleted files their owner"},
    {1, "cap_dac_override", true, "reading what belongs to other users"},
};

void CheckCapabilities(std::vector<EnvironmentCheck>* checks) {
  for (const Capability& capability : kCapabilities) {
    EnvironmentCheck check{capability.name, HasCapability(capability.number), "", "", capability.required};
    check.detail = absl::StrCat(check.ok ? "held" : "missing", ": ", capability.purpose);
    if (!check.ok) {
      check.cure = absl::StrCat("run as root; in a container add ", capability.name, " to its capabilities");
    }
    checks->push_back(std::move(check));
  }
}

// Touches a page and asks whether the kernel calls it dirty: after a fault every page is, where the option is
// on.
EnvironmentCheck CheckSoftDirty() {
  EnvironmentCheck check{"soft_dirty", false, "", "", false};
  std::vector<char> memory(8192);
  auto address = reinterpret_cast<uintptr_t>(memory.data() + 4096);
  *reinterpret_cast<volatile char*>(address) = 1;
  uint64_t entry = 0;
  absl::StatusOr<UniqueFd> pagemap = OpenFile("/proc/self/pagemap", 0);
  if (!pagemap.ok()) {
    check.detail = std::string(pagemap.status().message());
  } else if (::pread(pagemap->get(), &entry, sizeof entry,
                     static_cast<off_t>(address / static_cast<uintptr_t>(::getpagesize()) * sizeof entry)) !=
             static_cast<ssize_t>(sizeof entry)) {
    check.detail = absl::StrCat("/proc/self/pagemap: ", ErrorText(errno));
  } else {
    check.ok = (entry >> 55 & 1) != 0;
    check.detail = check.ok ? "the kernel tracks written pages: rekindled --track-dirty-pages can use it"
                            : "the kernel does not track written pages";
  }
  if (!check.ok) {
    check.cure =
        "none needed: Rekindle copies all and compares contents; rekindled --track-dirty-pages and CRIU's "
        "own incremental dumps want CONFIG_MEM_SOFT_DIRTY";
  }
  return check;
}

EnvironmentCheck CheckUserfaultfd() {
  EnvironmentCheck check{"userfaultfd", false, "", "", false};
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  check.ok = fd.valid();
  check.detail = check.ok ? "works" : ErrorText(errno);
  if (!check.ok) {
    check.cure =
        "lazy restores need CONFIG_USERFAULTFD, and root or vm.unprivileged_userfaultfd=1; eager ones do not";
  }
  return check;
}

EnvironmentCheck CheckIoUring() {
  EnvironmentCheck check{"io_uring", false, "", "", false};
  io_uring ring;
  int result = ::io_uring_queue_init(4, &ring, 0);
  check.ok = result == 0;
  if (check.ok) ::io_uring_queue_exit(&ring);
  check.detail = check.ok ? "works" : ErrorText(-result);
  if (!check.ok) {
    check.cure =
        "none needed: the store writes each of its buffers with a pwrite() that it waits for, which on a "
        "fast disk takes longer; for io_uring set kernel.io_uring_disabled=0, and in a container allow its "
        "system calls (seccomp profile)";
  }
  return check;
}

EnvironmentCheck CheckKcmp() {
  EnvironmentCheck check{"kcmp", false, "", "", true};
  pid_t self = ::getpid();
  check.ok = ::syscall(SYS_kcmp, self, self, KCMP_VM, 0, 0) == 0;
  check.detail = check.ok ? "works" : ErrorText(errno);
  if (!check.ok)
    check.cure = "use a kernel with CONFIG_KCMP, and in a container a seccomp profile that allows kcmp";
  return check;
}

EnvironmentCheck CheckPtraceScope() {
  EnvironmentCheck check{"ptrace_scope", true, "not restricted", "", false};
  absl::StatusOr<std::string> content = ReadFile("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  if (!content.ok() || !absl::SimpleAtoi(*content, &scope)) return check;  // no Yama in this kernel
  check.ok = scope < 3;
  check.required = !check.ok;
  check.detail = absl::StrCat("kernel.yama.ptrace_scope is ", scope,
                              scope < 3 ? " (root may trace)" : " (nobody may trace, not even root)");
  if (!check.ok)
    check.cure = "reboot with kernel.yama.ptrace_scope below 3: 3 can't be lowered in a running system";
  return check;
}

}  // namespace

std::vector<EnvironmentCheck> CheckEnvironment(const absl::StatusOr<Installation>& criu) {
  std::vector<EnvironmentCheck> checks;
  checks.push_back(CheckInstallation(criu));
  if (criu.ok()) checks.push_back(CheckKernelForCriu(*criu));
  checks.push_back(CheckProbeCache());
  CheckCapabilities(&checks);
  checks.push_back(CheckSoftDirty());
  checks.push_back(CheckUserfaultfd());
  checks.push_back(CheckIoUring());
  checks.push_back(CheckKcmp());
  checks.push_back(CheckPtraceScope());
  return checks;
}

}  // namespace rekindle::criu
