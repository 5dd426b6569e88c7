// rekindle-init: the first process of a container.
//   rekindle-init COMMAND [ARGUMENT...]   a job that can be captured, and come back in another container
//   rekindle-init                         a place for one that comes back (rekindle restore --into)
// It hands signals on, reaps what nobody else does, and ends as the command does, or the job that came back.
//
// The first numbers of a PID namespace are gone by the time that a container has begun, and those that follow
// are the same in each: a job with one of them would find it taken where it is to come back. So the command
// gets none of the first 300, which the kernel gives out only once. It has a session of its own, too.
//
// No library of ours or of the container's: it runs in any.
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "restore/container_place.h"

namespace {

using rekindle::restore::kPlaceIsTaken;
using rekindle::restore::kPlaceName;

constexpr pid_t kFirstOfJob = 300;
constexpr int kNotRun = 127;
constexpr int kNobodyCanTell = 255;  // how it ended
constexpr int kReapedWithinMs = 2000;
constexpr int kHandedOn[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP};

void TakeNumbersBefore(pid_t first) {
  if (getpid() != 1) return;  // others use the namespace too, and it has given out more
  for (pid_t number = 0; number < first - 1;) {
    number = fork();
    if (number == 0) _exit(0);
    if (number < 0) return;  // a limit; then it is one of these
    waitpid(number, nullptr, 0);
  }
}

[[noreturn]] void Become(char** command, const sigset_t* mask) {
  setsid();
  sigprocmask(SIG_SETMASK, mask, nullptr);
  execvp(command[0], command);
  fprintf(stderr, "rekindle-init: running %s: %s\n", command[0], strerror(errno));
  _exit(kNotRun);
}

int OpenProcess(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

bool HasEnded(int pidfd) {
  pollfd entry{pidfd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// Not a container of the standard library's: it would be most of the program.
class Processes {
 public:
  bool Has(pid_t pid) const {
    for (size_t i = 0; i < count_; ++i) {
      if (pids_[i] == pid) return true;
    }
    return false;
  }
  // Takes the descriptor.
  void Add(pid_t pid, int pidfd) {
    if (count_ == room_) {
      room_ = room_ == 0 ? 64 : 2 * room_;
      pids_ = static_cast<pid_t*>(realloc(pids_, room_ * sizeof *pids_));
      entries_ = static_cast<pollfd*>(realloc(entries_, room_ * sizeof *entries_));
      if (pids_ == nullptr || entries_ == nullptr) _exit(kNotRun);
    }
    pids_[count_] = pid;
    entries_[count_++] = {pidfd, POLLIN, 0};
  }
  void Drop(size_t index) {
    close(entries_[index].fd);
    --count_;
    pids_[index] = pids_[count_];
    entries_[index] = entries_[count_];
  }
  // Until one of them has ended.
  void Await() {
    while (poll(entries_, count_, -1) < 0 && errno == EINTR) {
    }
  }
  int pidfd(size_t index) const { return entries_[index].fd; }
  size_t size() const { return count_; }

 private:
  pid_t* pids_ = nullptr;
  pollfd* entries_ = nullptr;
  size_t count_ = 0, room_ = 0;
};

// 0: it has gone.
pid_t ParentOf(pid_t pid) {
  char name[32], text[512];
  snprintf(name, sizeof name, "/proc/%d/stat", pid);
  FILE* file = fopen(name, "re");
  if (file == nullptr) return 0;
  const size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  const char* behind_name = strrchr(text, ')');
  int parent = 0;
  return behind_name != nullptr && sscanf(behind_name, ") %*c %d", &parent) == 1 ? parent : 0;
}

// Who is the first of its PID namespace has it for itself. Where others are in it too, as in a pod that
// shares it or where it is the machine's own, only what came back here is this one's, and what it has begun.
bool IsOurs(pid_t pid, const Processes& jobs) {
  if (getpid() == 1) return true;
  constexpr int kDeepest = 1000;  // while it is looked at, parents change
  for (int depth = 0; pid > 1 && depth < kDeepest; ++depth, pid = ParentOf(pid)) {
    if (pid == getpid() || jobs.Has(pid)) return true;
  }
  return false;
}

// `signal` to all of ours who are not among `told`.
void Tell(int signal, const Processes& jobs, Processes& told) {
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return;
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 1 || pid == getpid() || told.Has(pid) || !IsOurs(pid, jobs)) continue;
    const int pidfd = OpenProcess(pid);
    if (pidfd < 0) continue;
    if (HasEnded(pidfd)) {
      close(pidfd);
      continue;
    }
    told.Add(pid, pidfd);
    syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
  }
  closedir(processes);
}

// What it was asked to be the place of is not its child. Each is told at once, whatever the others do, and
// then waited for; who has begun meanwhile, too.
void EndOthers(int signal, const Processes& jobs) {
  Processes told;
  for (;;) {
    Tell(signal, jobs, told);
    if (told.size() == 0) return;
    told.Await();
    for (size_t i = told.size(); i-- > 0;) {
      if (HasEnded(told.pidfd(i))) told.Drop(i);
    }
  }
}

int ExitCodeOf(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Of one who has ended and is not our child: the kernel tells from Linux 6.15 on, once its parent has been
// told. linux/pidfd.h has it since.
int ExitCodeOfEnded(int pidfd) {
  struct {
    uint64_t mask, cgroup;
    uint32_t ids[11];
    int32_t exit_status;
  } info = {};
  constexpr uint64_t kExit = 1u << 3;
  pollfd reaped{pidfd, 0, 0};
  poll(&reaped, 1, kReapedWithinMs);
  info.mask = kExit;
  if (ioctl(pidfd, _IOWR(0xFF, 11, info), &info) != 0 || (info.mask & kExit) == 0) return kNobodyCanTell;
  return ExitCodeOf(info.exit_status);
}

// Everybody who has ended and whose parent this is. The status of `job`, or -1: it lives.
int Reap(pid_t job) {
  int found = -1, status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == job) found = ExitCodeOf(status);
  }
  return found;
}

// Until the command has ended: its exit code.
int ServeCommand(int signals, pid_t job) {
  for (;;) {
    signalfd_siginfo got;
    if (read(signals, &got, sizeof got) != sizeof got) continue;
    const int signal = static_cast<int>(got.ssi_signo);
    if (signal != SIGCHLD) {
      kill(job, signal);
    } else if (const int code = Reap(job); code >= 0) {
      return code;
    }
  }
}

// Until all that came back here have ended, or it is told to end: the exit code of the last of them.
int ServePlace(int signals) {
  Processes jobs;
  for (;;) {
    // One of them: when that has ended, the others are looked at.
    pollfd entries[] = {{signals, POLLIN, 0}, {jobs.size() > 0 ? jobs.pidfd(0) : -1, POLLIN, 0}};
    if (poll(entries, 2, -1) < 0) continue;
    if (entries[1].revents != 0) {
      const int code = ExitCodeOfEnded(jobs.pidfd(0));
      jobs.Drop(0);
      if (jobs.size() == 0) return code;
      continue;
    }
    signalfd_siginfo got;
    if (read(signals, &got, sizeof got) != sizeof got) continue;
    switch (static_cast<int>(got.ssi_signo)) {
      case SIGCHLD:
        Reap(0);
        break;
      case kPlaceIsTaken: {
        const int pidfd = OpenProcess(got.ssi_int);
        if (pidfd >= 0) {
          jobs.Add(got.ssi_int, pidfd);
        } else if (jobs.size() == 0) {
          return kNobodyCanTell;  // it had no time for more
        }
        break;
      }
      case SIGHUP:
      case SIGINT:
      case SIGQUIT:
      case SIGTERM:
        EndOthers(static_cast<int>(got.ssi_signo), jobs);
        return 0;
      default:
        break;
    }
  }
}

}  // namespace

int main(int count, char** words) {
  const bool has_job = count > 1;
  sigset_t watched, before;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : kHandedOn) sigaddset(&watched, signal);
  if (!has_job) sigaddset(&watched, kPlaceIsTaken);
  sigprocmask(SIG_BLOCK, &watched, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const int signals = signalfd(-1, &watched, SFD_CLOEXEC);
  if (signals < 0) {
    fprintf(stderr, "rekindle-init: watching for signals: %s\n", strerror(errno));
    return kNotRun;
  }
  if (!has_job) {
    // By it a restore knows that it may tell which job came back (container_place.h): all is ready for that.
    prctl(PR_SET_NAME, kPlaceName, 0, 0, 0);
    return ServePlace(signals);
  }
  TakeNumbersBefore(kFirstOfJob);
  const pid_t job = fork();
  if (job == 0) Become(words + 1, &before);
  if (job < 0) {
    fprintf(stderr, "rekindle-init: making a process for %s: %s\n", words[1], strerror(errno));
    return kNotRun;
  }
  return ServeCommand(signals, job);
}
