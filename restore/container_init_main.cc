// rekindle-init: the first process of a container.
//   rekindle-init COMMAND [ARGUMENT...]   a job that can be captured, and come back in another container
//   rekindle-init                         a place for one that comes back (rekindle restore --into)
// It hands signals on, reaps what nobody else does, and ends as the command does.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr pid_t kFirstOfJob = 300;
constexpr int kNotRun = 127;
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

// What it was asked to be the place of is not its child: it ends all processes but itself, and waits for
// them.
void EndOthers(int signal) {
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return;
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid <= 1 || pid == getpid()) continue;
    const int other = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (other < 0) continue;
    syscall(SYS_pidfd_send_signal, other, signal, nullptr, 0);
    pollfd ended{other, POLLIN, 0};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    close(other);
  }
  closedir(processes);
}

// Everybody who has ended and whose parent this is. The status of `job`, or -1: it lives.
int Reap(pid_t job) {
  int found = -1, status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == job) found = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return found;
}

}  // namespace

int main(int count, char** words) {
  const bool has_job = count > 1;
  sigset_t watched, before;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  for (const int signal : kHandedOn) sigaddset(&watched, signal);
  sigprocmask(SIG_BLOCK, &watched, &before);
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  pid_t job = 0;
  if (has_job) {
    TakeNumbersBefore(kFirstOfJob);
    job = fork();
    if (job == 0) Become(words + 1, &before);
    if (job < 0) {
      fprintf(stderr, "rekindle-init: making a process for %s: %s\n", words[1], strerror(errno));
      return kNotRun;
    }
  }
  for (;;) {
    const int signal = sigwaitinfo(&watched, nullptr);
    if (signal < 0) continue;
    if (signal == SIGCHLD) {
      if (const int status = Reap(job); status >= 0) return status;
    } else if (has_job) {
      kill(job, signal);
    } else if (signal == SIGHUP || signal == SIGINT || signal == SIGQUIT || signal == SIGTERM) {
      EndOthers(signal);
      return 0;
    }
  }
}
