/* A copy of this process in a sandbox that somebody else prepared. */
#ifndef REKINDLE_HOOK_BIRTH_H_
#define REKINDLE_HOOK_BIRTH_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct rekindle_birth {
  int sandbox;        /* pidfd of the sandbox's init */
  const int* cgroups; /* cgroup.procs files that the copy is to be written into */
  size_t cgroup_count;
  pid_t pid;     /* out: the copy's, in the sandbox's PID namespace */
  char why[512]; /* out: what failed */
};

/* 0 in the copy, 1 in this process, which is as before, -1 when there is no copy (`why`). Calls fork(). The
 * copy's parent is the sandbox's init; it leads a session of its own, since signals to a process group would
 * reach the template otherwise. */
int rekindle_give_birth(struct rekindle_birth* birth);

#endif /* REKINDLE_HOOK_BIRTH_H_ */
