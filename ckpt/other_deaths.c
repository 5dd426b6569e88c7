// Part of rekindle-criu-preload.so: who dies in the middle of a dump takes no other task along.
//
// At the end of its work on a task CRIU lets it run into a breakpoint, and waits for whatever task has
// something to tell (compel_stop_on_syscall). If that is the death of another, CRIU gives up at once, and the
// task, let go, runs into the breakpoint and dies of SIGTRAP. Here CRIU goes on waiting for the one that it
// has let run: it learns of the other's death when it comes to it.
//
// Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include "ckpt/other_deaths.h"

#include <stddef.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "ckpt/bounded_waits.h"

#ifdef __x86_64__

static pid_t resumed;  // last; 0: none

void NoteResumed(pid_t task) { resumed = task; }

pid_t wait4(pid_t pid, int* status, int options, struct rusage* usage) {
  for (;;) {
    int what = 0;
    const pid_t found = BoundedWait(pid, &what, options, usage);
    const int others = pid == -1 && (options & __WALL) != 0 && resumed != 0 && found != resumed;
    if (found > 0 && others && (WIFSIGNALED(what) || WIFEXITED(what))) continue;
    if (status != NULL) *status = what;
    return found;
  }
}

#endif
