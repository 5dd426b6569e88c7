// Part of rekindle-criu-preload.so: CRIU that has been asked to give up, or whose Rekindle has died, does not
// wait without end for a task that can't stop (a thread of io_uring's). Its wait fails, and CRIU lets go of
// the job as after any failure of its own: its code leaves the job's memory, and all tasks get back their
// registers. Killed in its place, it would leave that to nobody, and the job would run into CRIU's code.
//
// A clock ticks from the first such wait on. Its signal reaches CRIU while it waits for a task, and at no
// other time: nothing else that CRIU does is prepared to be interrupted.
//
// Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include "ckpt/bounded_waits.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/give_up.h"

enum { kTickMillis = 250, kTicks = 1000 / kTickMillis };

static volatile sig_atomic_t asked, ticks;  // how often so far; ticks since the wait began
static pid_t parent;
static pid_t prepared;  // the process that has done so: a child of it has no clock

static void OnSignal(int signal, siginfo_t* info, void* context) {
  (void)signal;
  (void)context;
  if (info->si_code == SI_TIMER) {
    ++ticks;
  } else {
    ++asked;
  }
}

static long Mask(int how) {
  const uint64_t signals = UINT64_C(1) << (GIVE_UP_SIGNAL - 1);
  return syscall(SYS_rt_sigprocmask, how, &signals, NULL, sizeof signals);
}

// 0: there is no clock, and waits are not bounded.
static int Prepare(void) {
  static int ticking;
  const pid_t self = (pid_t)syscall(SYS_getpid);
  if (prepared == self) return ticking;
  prepared = self;
  parent = (pid_t)syscall(SYS_getppid);
  ticking = 0;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_SIGINFO;
  if (Mask(SIG_BLOCK) != 0 || sigaction(GIVE_UP_SIGNAL, &action, NULL) != 0) return 0;
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = GIVE_UP_SIGNAL;
  int timer = 0;
  const struct timespec every = {0, kTickMillis * 1000000L};
  const struct itimerspec times = {every, every};
  ticking = syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0 &&
            syscall(SYS_timer_settime, timer, 0, &times, NULL) == 0;
  return ticking;
}

pid_t BoundedWait(pid_t pid, int* status, int options, struct rusage* usage) {
  const int error = errno;
  const int bounded = (options & __WALL) != 0 && (options & WNOHANG) == 0 && Prepare();
  errno = error;
  if (!bounded) return (pid_t)syscall(SYS_wait4, pid, status, options, usage);
  ticks = 0;
  for (;;) {
    const int ticks_before = ticks, asked_before = asked;
    Mask(SIG_UNBLOCK);
    const pid_t found = (pid_t)syscall(SYS_wait4, pid, status, options, usage);
    const int why = errno;
    Mask(SIG_BLOCK);
    errno = why;
    if (found >= 0 || why != EINTR) return found;
    // CRIU's own alarm, by which it stops waiting for the threads to stop. It comes again.
    if (ticks == ticks_before && asked == asked_before) return found;
    if (ticks < GIVE_UP_WAIT_SECONDS * kTicks) continue;
    const int is_orphan = (pid_t)syscall(SYS_getppid) != parent;
    if (!asked && (!is_orphan || ticks < ORPHAN_WAIT_SECONDS * kTicks)) continue;
    errno = ETIMEDOUT;
    return -1;
  }
}
