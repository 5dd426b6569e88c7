#include "base/subprocess.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/children.h"
#include "base/deadline.h"
#include "base/oom_score.h"
#include "base/session_keyring.h"
#include "base/status.h"
#include "base/wait_status.h"

extern char** environ;

namespace rekindle {
namespace {

// Resolved before fork: execvp's search is not async-signal-safe in a threaded process.
absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = ::getenv("PATH");
  for (absl::string_view directory : absl::StrSplit(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin", ':')) {
    std::string candidate = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("starting ", name, ": no program of that name in PATH"));
}

// All that the child does between fork and exec: only async-signal-safe calls, no allocation.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const char* working_directory;
  std::pair<int, int>* moves;  // (source, target); sources are made >= first_free before the first dup2
  size_t move_count;
  int highest_target;
  bool new_session;
  bool new_keyring;
  bool die_with_parent_thread;
  int umask;
  const Owner* run_as;
  const int* oom_score;
  const std::function<void()>* prepare;
  pid_t parent;
  int error_fd;
};

[[noreturn]] void FailInChild(const ChildPlan& plan) {
  int error = errno;
  [[maybe_unused]] ssize_t n = ::write(plan.error_fd, &error, sizeof error);
  ::_exit(127);
}

// System calls as they are: the C library's would change (in a forked child: signal) all threads.
bool BecomeUser(const Owner& user) {
  return ::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) == 0 &&
         ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
         ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0;
}

// fork() with the child's number in its PID namespace.
pid_t ForkAs(pid_t number) {
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<uint64_t>(&number);
  arguments.set_tid_size = 1;
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

[[noreturn]] void RunChild(ChildPlan& plan) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) ::signal(signal, SIG_DFL);
  if (plan.new_session) ::setsid();
  if (plan.umask >= 0) ::umask(static_cast<mode_t>(plan.umask));
  if (plan.new_keyring || plan.run_as) {
    errno = LeaveSessionKeyring();
    if (errno != 0) FailInChild(plan);
  }
  if (plan.oom_score) TakeOnOomScore(*plan.oom_score);
  if (*plan.prepare) (*plan.prepare)();
  // Before what is said of the parent, which a change of user takes back.
  if (plan.run_as && !BecomeUser(*plan.run_as)) FailInChild(plan);
  if (plan.die_with_parent_thread) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != plan.parent) ::_exit(127);
  }
  int first_free = plan.highest_target + 1;
  int error_fd = ::fcntl(plan.error_fd, F_DUPFD_CLOEXEC, first_free);
  if (error_fd < 0) FailInChild(plan);
  plan.error_fd = error_fd;
  for (size_t i = 0; i < plan.move_count; ++i) {
    int moved = ::fcntl(plan.moves[i].first, F_DUPFD_CLOEXEC, first_free);
    if (moved < 0) FailInChild(plan);
    plan.moves[i].first = moved;
  }
  for (int fd = 0; fd <= plan.highest_target; ++fd) ::close(fd);
  for (int fd = 0; fd < 3; ++fd) {
    if (::open("/dev/null", O_RDWR) != fd) FailInChild(plan);
  }
  for (size_t i = 0; i < plan.move_count; ++i) {
    if (::dup2(plan.moves[i].first, plan.moves[i].second) < 0) FailInChild(plan);
  }
  // Whatever else is open stays so until exec and no longer.
  ::syscall(SYS_close_range, first_free, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
  if (plan.working_directory && ::chdir(plan.working_directory) != 0) FailInChild(plan);
  ::execve(plan.program, plan.argv, plan.envp);
  FailInChild(plan);
}

}  // namespace

std::vector<std::string> EnvironmentWith(const std::vector<std::string>& variables) {
  constexpr absl::string_view kPreload = "LD_PRELOAD=";
  std::vector<std::string> environment = variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const absl::string_view own = *variable;
    const absl::string_view name = own.substr(0, own.find('=') + 1);
    const auto given =
        std::find_if(environment.begin(), environment.begin() + static_cast<ptrdiff_t>(variables.size()),
                     [name](const std::string& other) { return absl::StartsWith(other, name); });
    if (name.empty() || given == environment.begin() + static_cast<ptrdiff_t>(variables.size())) {
      environment.emplace_back(own);
    } else if (name == kPreload) {
      absl::StrAppend(&*given, ":", own.substr(kPreload.size()));
    }
  }
  return environment;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::string ExitState::ToString() const {
  if (signal != 0) return absl::StrCat("killed by signal ", signal, " (", ::strsignal(signal), ")");
  return absl::StrCat("exit status ", code);
}

absl::StatusOr<Subprocess> Subprocess::Start(const SubprocessOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("starting a program: no name given");
  RK_ASSIGN_OR_RETURN(std::string program, FindProgram(options.argv[0]));

  std::vector<char*> argv = Pointers(options.argv);
  std::vector<char*> environment = Pointers(options.environment);
  std::vector<std::pair<int, int>> moves = options.descriptors;
  int highest = 2;
  for (const auto& move : moves) highest = std::max(highest, move.second);

  int error_pipe[2];
  if (::pipe2(error_pipe, O_CLOEXEC) != 0) return ErrnoStatus(errno, absl::StrCat("starting ", program));
  UniqueFd error_read(error_pipe[0]), error_write(error_pipe[1]);

  ChildPlan plan{};
  plan.program = program.c_str();
  plan.argv = argv.data();
  plan.envp = options.environment.empty() ? environ : environment.data();
  plan.working_directory = options.working_directory.empty() ? nullptr : options.working_directory.c_str();
  plan.moves = moves.data();
  plan.move_count = moves.size();
  plan.highest_target = highest;
  plan.new_session = options.new_session;
  plan.new_keyring = options.new_keyring;
  plan.die_with_parent_thread = options.die_with_parent_thread;
  plan.umask = options.umask;
  plan.run_as = options.run_as ? &*options.run_as : nullptr;
  const std::optional<int> oom_score =
      options.run_as && !options.oom_score ? OomScoreForOthers() : options.oom_score;
  plan.oom_score = oom_score ? &*oom_score : nullptr;
  plan.prepare = &options.prepare;
  plan.parent = ::getpid();
  plan.error_fd = error_write.get();

  Subprocess child;
  {
    MakingChild making;
    child.pid_ = options.number == 0 ? ::fork() : ForkAs(options.number);
    if (child.pid_ < 0) return ErrnoStatus(errno, absl::StrCat("starting ", program));
    if (child.pid_ == 0) RunChild(plan);
    NoteChild(child.pid_);
  }
  const pid_t pid = child.pid_;
  child.pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  error_write.Reset();
  int error = 0;
  ssize_t n;
  do {
    n = ::read(error_read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(sizeof error)) {
    child.Wait().IgnoreError();
    return ErrnoStatus(error, absl::StrCat("starting ", program));
  }
  if (!child.pidfd_.valid())
    return absl::InternalError(absl::StrCat("starting ", program, ": no pidfd for it"));
  return child;
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)) {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  if (this != &other) {
    const Subprocess ends_here(std::move(*this));
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
  }
  return *this;
}

Subprocess::~Subprocess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    Wait().IgnoreError();
  }
}

absl::StatusOr<ExitState> Subprocess::Wait() {
  if (pid_ <= 0) return absl::FailedPreconditionError("waiting for a process that was not started");
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) {
      int error = errno;
      pid_ = -1;
      return ErrnoStatus(error, "waiting for a child process");
    }
  }
  pid_ = -1;
  return ExitStateOf(status);
}

absl::StatusOr<ExitState> Subprocess::WaitFor(absl::Duration timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    const int left_ms = deadline.left_ms();
    pollfd entry{pidfd_.get(), POLLIN, 0};
    const int n = ::poll(&entry, 1, left_ms);
    if (n > 0) return Wait();
    if (n < 0 && errno != EINTR) return ErrnoStatus(errno, "waiting for a child process");
    if (n == 0 && left_ms == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", pid_, " is still running after ", absl::FormatDuration(timeout)));
    }
  }
}

absl::Status Subprocess::Signal(int signal) const {
  if (pid_ <= 0) return absl::FailedPreconditionError("signalling a process that was not started");
  if (::kill(pid_, signal) != 0) return ErrnoStatus(errno, absl::StrCat("signalling process ", pid_));
  return absl::OkStatus();
}

pid_t Subprocess::Release() {
  pidfd_.Reset();
  return std::exchange(pid_, -1);
}

namespace {

// What the pipe has now, and whether more may come. No more than that, however fast others write.
absl::StatusOr<bool> ReadAll(int pipe, std::string* output) {
  constexpr size_t kMostInAPipe = 1 << 20;
  char buffer[4096];
  for (size_t total = 0; total < kMostInAPipe;) {
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got > 0) {
      output->append(buffer, static_cast<size_t>(got));
      total += static_cast<size_t>(got);
    } else if (got == 0 || errno == EAGAIN) {
      return got != 0;
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "reading what a program says");
    }
  }
  return true;
}

// What it says until it has ended, which is not for others to delay who have its output from it.
absl::Status FollowToTheEnd(const Subprocess& child, UniqueFd pipe, const Deadline& deadline,
                            std::string* output) {
  for (;;) {
    const int left_ms = deadline.left_ms();
    pollfd entries[2] = {{child.pidfd(), POLLIN, 0}, {pipe.get(), POLLIN, 0}};
    const int n = ::poll(entries, 2, left_ms);
    if (n < 0 && errno != EINTR) return ErrnoStatus(errno, "waiting for a program");
    if (n == 0 && left_ms == 0) return absl::DeadlineExceededError("it did not finish");
    if (n <= 0) continue;
    // Before it ended it said all that it had to say.
    if (pipe.valid()) {
      RK_ASSIGN_OR_RETURN(const bool more, ReadAll(pipe.get(), output));
      if (!more) pipe.Reset();
    }
    if (entries[0].revents != 0) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& argv, absl::Duration timeout) {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
  UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  if (::fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "making a pipe");
  SubprocessOptions options;
  options.argv = argv;
  options.descriptors = {{write_end.get(), 1}, {write_end.get(), 2}};
  options.new_session = true;
  const Deadline deadline(timeout);
  RK_ASSIGN_OR_RETURN(Subprocess child, Subprocess::Start(options));
  write_end.Reset();
  CommandResult result;
  const absl::Status followed = FollowToTheEnd(child, std::move(read_end), deadline, &result.output);
  if (!followed.ok()) {
    // With what it has started. Its number is not another's before it is reaped.
    ::kill(-child.pid(), SIGKILL);
    if (!absl::IsDeadlineExceeded(followed)) return Annotate(followed, argv[0]);
    return absl::DeadlineExceededError(
        absl::StrCat(argv[0], " did not finish within ", absl::FormatDuration(timeout)));
  }
  RK_ASSIGN_OR_RETURN(result.exit, child.Wait());
  return result;
}

}  // namespace rekindle
