#include "daemon/job_launcher.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/children.h"
#include "base/deadline.h"
#include "base/descriptor_limit.h"
#include "base/file.h"
#include "base/oom_score.h"
#include "base/session_keyring.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "daemon/launch_trouble.h"

namespace rekindle::daemon {
namespace {

void Collect(pid_t child) {
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Where the program may be; which one it is only the job's user can tell, in the child.
std::vector<std::string> ProgramCandidates(const LaunchOptions& options) {
  const std::string& name = options.argv[0];
  if (absl::StrContains(name, '/')) return {name};
  absl::string_view path = "/usr/local/bin:/usr/bin:/bin";
  for (const std::string& variable : options.environment) {
    if (absl::StartsWith(variable, "PATH=")) path = absl::string_view(variable).substr(5);
  }
  std::vector<std::string> candidates;
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", name));
  }
  return candidates;
}

enum class Step : int {
  kBecomeUser,
  kEnterFolder,
  kOpenLog,
  kOpenInput,
  kDescriptors,
  kEnterGroup,
  kEnterMounts,
  kEnterNetwork,
  kTakeOnSetting,  // not for want of which it fails
  kExecute
};

struct Failure {
  Step step;
  int error;
  RefusedSetting refused;
  int candidate;  // kExecute: which of the programs it was
};

// The next process gets a PID beyond those that a machine gives out while it starts: an image of a job may
// need its PIDs back after that. As far as we may choose (CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN).
void SkipLowPids() {
  constexpr int64_t kEnough = 65536;
  constexpr char kLast[] = "/proc/sys/kernel/ns_last_pid";
  int64_t limit = 0, last = 0;
  if (!absl::SimpleAtoi(ReadFile(kLast).value_or(""), &last) || last >= kEnough) return;
  if (!absl::SimpleAtoi(ReadFile("/proc/sys/kernel/pid_max").value_or(""), &limit)) return;
  const int64_t least = std::min(kEnough, limit / 2);
  if (last >= least) return;
  const std::string wanted = absl::StrCat(least);
  absl::StatusOr<UniqueFd> fd = OpenFile(kLast, O_WRONLY);
  if (fd.ok()) WriteFully(fd->get(), wanted.data(), wanted.size(), kLast).IgnoreError();
}

// System calls as they are: they change the calling thread alone, where the C library's wrappers would change
// (or in a forked child: signal) all threads.
int BecomeUser(const RunAs& user) {
  if (const int error = LeaveSessionKeyring(); error != 0) return error;
  if (::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) != 0 ||
      ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) != 0 ||
      ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) != 0) {
    return errno;
  }
  return 0;
}

struct ChildPlan {
  char* const* programs;
  char* const* argv;
  char* const* envp;
  const char* working_directory;
  const char* log;
  const char* input;
  int log_fd;
  const RunAs* run_as;
  const int* groups;
  size_t group_count;
  const int* needed;  // all of its descriptors, in order
  size_t needed_count;
  int mounts, network;
  const ProcessSettings* settings;
  const int* oom_score;
  int error_fd;
  int go_fd;  // a byte of it: the command may begin; its end: nobody is there any more to know of it
};

[[noreturn]] void FailInChild(const ChildPlan& plan, Step step, int error, int candidate = 0) {
  Failure failure{step, error, {}, candidate};
  [[maybe_unused]] ssize_t n = ::write(plan.error_fd, &failure, sizeof failure);
  ::_exit(127);
}

void TakeOnSettingsInChild(const ChildPlan& plan) {
  std::array<RefusedSetting, kMostRefused> refused;
  const size_t count = TakeOnSettings(*plan.settings, &refused);
  for (size_t i = 0; i < count; ++i) {
    const Failure failure{Step::kTakeOnSetting, refused[i].error, refused[i], 0};
    [[maybe_unused]] ssize_t n = ::write(plan.error_fd, &failure, sizeof failure);
  }
}

// What the service has open but for these, which are in order: its locks among it, and what other children
// wait at.
void CloseAllBut(absl::Span<const int> all_kept) {
  unsigned first = 3;
  for (const int kept : all_kept) {
    if (kept < static_cast<int>(first)) continue;
    if (static_cast<unsigned>(kept) > first) ::syscall(SYS_close_range, first, kept - 1, 0);
    first = static_cast<unsigned>(kept) + 1;
  }
  ::syscall(SYS_close_range, first, ~0U, 0);
}

bool MayGo(int fd) {
  char byte;
  ssize_t got;
  while ((got = ::read(fd, &byte, 1)) < 0 && errno == EINTR) {
  }
  return got == 1;
}

// Between fork and exec: only async-signal-safe calls, no allocation.
[[noreturn]] void RunChild(ChildPlan plan) {
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setsid();
  // Before what may take its time, or wait for somebody: groups, a FIFO's other end, a file system far away.
  CloseAllBut({plan.needed, plan.needed_count});
  RestoreDescriptorLimit();
  plan.error_fd = ::fcntl(plan.error_fd, F_DUPFD_CLOEXEC, 3);
  plan.go_fd = ::fcntl(plan.go_fd, F_DUPFD_CLOEXEC, 3);
  if (plan.error_fd < 0 || plan.go_fd < 0) ::_exit(127);
  for (size_t i = 0; i < plan.group_count; ++i) {
    if (::write(plan.groups[i], "0", 1) != 1) FailInChild(plan, Step::kEnterGroup, errno);
  }
  if (plan.mounts >= 0 && ::setns(plan.mounts, CLONE_NEWNS) != 0)
    FailInChild(plan, Step::kEnterMounts, errno);
  if (plan.network >= 0 && ::setns(plan.network, CLONE_NEWNET) != 0)
    FailInChild(plan, Step::kEnterNetwork, errno);
  if (plan.settings) TakeOnSettingsInChild(plan);
  // Where it may not be the lower one that it should be, nothing can be done.
  if (plan.oom_score) TakeOnOomScore(*plan.oom_score);
  if (plan.run_as) {
    if (int error = BecomeUser(*plan.run_as); error != 0) FailInChild(plan, Step::kBecomeUser, error);
  }
  std::array<int, 3> still_needed{plan.error_fd, plan.log_fd, plan.go_fd};
  std::sort(still_needed.begin(), still_needed.end());
  CloseAllBut(still_needed);
  if (::chdir(plan.working_directory) != 0) FailInChild(plan, Step::kEnterFolder, errno);
  int log = plan.log_fd >= 0 ? ::fcntl(plan.log_fd, F_DUPFD_CLOEXEC, 3)
                             : ::open(plan.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
  if (log < 0) FailInChild(plan, Step::kOpenLog, errno);
  int input = ::open(plan.input, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (input < 0) FailInChild(plan, Step::kOpenInput, errno);
  if (log < 3) log = ::fcntl(log, F_DUPFD_CLOEXEC, 3);
  if (log < 0) FailInChild(plan, Step::kDescriptors, errno);
  if (input == 0 ? ::fcntl(0, F_SETFD, 0) != 0 : ::dup2(input, 0) != 0)
    FailInChild(plan, Step::kDescriptors, errno);
  if (::dup2(log, 1) != 1 || ::dup2(log, 2) != 2) FailInChild(plan, Step::kDescriptors, errno);
  ::syscall(SYS_close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
  if (plan.settings) ::umask(plan.settings->file_mode_mask);
  if (!MayGo(plan.go_fd)) ::_exit(127);
  int error = ENOENT, candidate = 0;
  for (int i = 0; plan.programs[i] != nullptr; ++i) {
    ::execve(plan.programs[i], plan.argv, plan.envp);
    if (errno == EACCES) {
      error = EACCES;
      candidate = i;
    } else if (errno != ENOENT && errno != ENOTDIR) {
      FailInChild(plan, Step::kExecute, errno, i);
    } else if (error == ENOENT && ::access(plan.programs[i], F_OK) == 0) {
      candidate = i;  // it is there, and its interpreter is not
    }
  }
  FailInChild(plan, Step::kExecute, error, candidate);
}

bool MakePipe(UniqueFd& read, UniqueFd& write) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  read.Reset(ends[0]);
  write.Reset(ends[1]);
  return true;
}

// Or closed at its other end.
bool AwaitReadable(int fd, const Deadline& deadline) {
  for (;;) {
    pollfd entry = {fd, POLLIN, 0};
    const int n = ::poll(&entry, 1, deadline.left_ms());
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

absl::Status LaunchError(const Failure& failure, const LaunchOptions& options,
                         const std::vector<std::string>& programs) {
  const std::string& program = options.argv[0];
  switch (failure.step) {
    case Step::kBecomeUser:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, " as user ", options.run_as->uid));
    case Step::kEnterFolder:
      return WhyNotEntered(failure.error, options);
    case Step::kOpenLog:
      return ErrnoStatus(failure.error,
                         absl::StrCat("starting ", program, ": opening its log ", options.log));
    case Step::kOpenInput:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, ": opening its standard input ",
                                                     options.standard_input));
    case Step::kDescriptors:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, ": setting up its descriptors"));
    case Step::kEnterGroup:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, ": entering its cgroup"));
    case Step::kEnterMounts:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, ": entering its mounts"));
    case Step::kEnterNetwork:
      return ErrnoStatus(failure.error, absl::StrCat("starting ", program, ": entering its network"));
    case Step::kTakeOnSetting:
    case Step::kExecute:
      break;
  }
  return WhyNotExecuted(failure.error, programs[static_cast<size_t>(failure.candidate)], options);
}

}  // namespace

absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options, std::vector<std::string>* warnings,
                                const std::function<absl::Status(pid_t pid)>& before_command) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return absl::InvalidArgumentError("starting a job: no command was given: write it after '--'");
  }
  std::vector<std::string> candidates = ProgramCandidates(options);
  std::vector<char*> programs = Pointers(candidates), argv = Pointers(options.argv),
                     environment = Pointers(options.environment);
  UniqueFd error_read, error_write, go_read, go_write;
  if (!MakePipe(error_read, error_write) || !MakePipe(go_read, go_write)) {
    return ErrnoStatus(errno, absl::StrCat("starting ", options.argv[0]));
  }
  ChildPlan plan{};
  plan.programs = programs.data();
  plan.argv = argv.data();
  plan.envp = environment.data();
  plan.working_directory = options.working_directory.empty() ? "/" : options.working_directory.c_str();
  plan.log = options.log.c_str();
  plan.input = options.standard_input.empty() ? "/dev/null" : options.standard_input.c_str();
  plan.log_fd = options.log_file.get();
  plan.run_as = options.run_as ? &*options.run_as : nullptr;
  plan.groups = options.groups.data();
  plan.group_count = options.groups.size();
  plan.mounts = options.mounts.get();
  plan.network = options.network.get();
  plan.settings = options.settings ? &*options.settings : nullptr;
  std::optional<int> oom_score = options.settings ? options.settings->oom_score_adj : std::nullopt;
  if (!oom_score) oom_score = OomScoreForOthers();
  plan.oom_score = oom_score ? &*oom_score : nullptr;
  plan.error_fd = error_write.get();
  plan.go_fd = go_read.get();
  std::vector<int> needed = options.groups;
  needed.insert(needed.end(), {plan.log_fd, plan.mounts, plan.network, plan.error_fd, plan.go_fd});
  std::sort(needed.begin(), needed.end());
  plan.needed = needed.data();
  plan.needed_count = needed.size();

  SkipLowPids();
  pid_t pid;
  {
    MakingChild making;
    pid = ::fork();
    if (pid < 0) return ErrnoStatus(errno, absl::StrCat("starting ", options.argv[0]));
    if (pid == 0) RunChild(plan);
    NoteChild(pid);
  }
  error_write.Reset();
  if (before_command) {
    if (absl::Status noted = before_command(pid); !noted.ok()) {
      ::kill(pid, SIGKILL);
      Collect(pid);
      return noted;
    }
  }
  // Our own end for reading is open still: no signal, should the child have ended.
  (void)!::write(go_write.get(), "", 1);
  go_read.Reset();
  Failure failure{};
  ssize_t got;
  for (const Deadline start_by(options.longest_start);;) {
    if (!AwaitReadable(error_read.get(), start_by)) {
      ::kill(pid, SIGKILL);
      Collect(pid);
      return absl::DeadlineExceededError(absl::StrCat(
          "starting ", options.argv[0], ": it is not running after ",
          absl::FormatDuration(options.longest_start),
          ": its standard input is a FIFO that nobody writes to, or a file system does not answer"));
    }
    got = ::read(error_read.get(), &failure, sizeof failure);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof failure) || failure.step != Step::kTakeOnSetting) break;
    if (warnings) warnings->push_back(DescribeRefused(failure.refused, *options.settings));
  }
  if (got == 0) return pid;  // exec closed the pipe
  Collect(pid);
  if (got != static_cast<ssize_t>(sizeof failure)) failure = {Step::kDescriptors, EIO, {}, 0};
  return LaunchError(failure, options, candidates);
}

absl::Status DoAs(const std::optional<RunAs>& user, const std::function<void()>& work) {
  const auto run = [&work] {
    work();
    return absl::OkStatus();
  };
  return user ? WithFileRightsOf(*user, run) : run();
}

absl::StatusOr<std::shared_ptr<const JobEnd>> AdoptWithGroup(JobReaper& reaper, pid_t pid,
                                                             std::function<void()> before_reaping) {
  auto adopted = reaper.Adopt(
      pid, [](const ExitState&) {},
      [pid, before_reaping = std::move(before_reaping)] {
        ::kill(-pid, SIGKILL);
        if (before_reaping) before_reaping();
      });
  if (!adopted.ok()) {
    ::kill(-pid, SIGKILL);
    Collect(pid);
  }
  return adopted;
}

absl::StatusOr<UniqueFd> OpenFileAs(const std::optional<RunAs>& user, const std::string& path, int flags,
                                    mode_t mode) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC | O_NONBLOCK;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  // /proc shows this process, whose open files are not theirs to open again.
  how.resolve = user ? RESOLVE_NO_MAGICLINKS : 0;
  UniqueFd opened;
  int error = 0;
  absl::Status became = DoAs(user, [&] {
    opened.Reset(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
    if (!opened.valid()) error = errno;
  });
  if (!became.ok()) return Annotate(became, absl::StrCat("opening ", path));
  struct stat there;
  if (error == ENXIO && ::stat(path.c_str(), &there) == 0 && S_ISCHR(there.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("opening ", path,
                                                      ": it is a device that is not there for the daemon, "
                                                      "which has no terminal: name a file, or the terminal "
                                                      "itself (`tty` tells its name)"));
  }
  if (error == ENXIO) {
    return absl::FailedPreconditionError(absl::StrCat(
        "opening ", path, ": it is a FIFO that nobody reads: open it for reading first, or name a file"));
  }
  if (error == ELOOP && user) {
    return absl::InvalidArgumentError(
        absl::StrCat("opening ", path,
                     ": it leads to what a process has open (/proc), or in circles: name the file itself"));
  }
  if (error == EISDIR) {
    return absl::FailedPreconditionError(
        absl::StrCat("opening ", path, ": it is a folder: name a file in it"));
  }
  if (error == ENOTDIR) {
    return absl::FailedPreconditionError(absl::StrCat(
        "opening ", path, ": what should be a folder on the way to it is a file: name another one"));
  }
  if (error == ENOENT && (flags & O_CREAT) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("opening ", path, ": its folder is not there: make that first, or name another file"));
  }
  if (error != 0) return ErrnoStatus(error, absl::StrCat("opening ", path));
  const int now = ::fcntl(opened.get(), F_GETFL);
  if (now < 0 || ::fcntl(opened.get(), F_SETFL, now & ~O_NONBLOCK) != 0)
    return ErrnoStatus(errno, absl::StrCat("opening ", path));
  return opened;
}

}  // namespace rekindle::daemon
