// Part of rekindle-criu-preload.so and rekindle-criu-restore.so: processes that CRIU makes for a moment end
// with who made them.
//
// To try what the kernel can do CRIU makes a child that sleeps until it is killed (fork_and_ptrace_attach),
// and a task that is restored makes one for a pidfd (create_tmp_process). If whoever made it is killed before
// that, it sleeps for ever, with CRIU's descriptors open.
//
// Linked against no part of the C library, as ckpt/page_filter.c.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Within CRIU nobody but such children calls it.
unsigned int sleep(unsigned int seconds) {
  syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  struct timespec left = {(time_t)seconds, 0};
  return syscall(SYS_nanosleep, &left, &left) == 0 ? 0 : (unsigned int)left.tv_sec;
}
