// To be loaded into a CRIU that restores (LD_PRELOAD): kills a process of the job just before CRIU makes a
// call of ptrace(2) on it. The file that KILL_AT_PTRACE names says when: "PID REQUEST", in CRIU's numbers; it
// is removed then.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

static int HasEnded(pid_t pid) {
  char path[64], state = 'Z';
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE* file = fopen(path, "re");
  if (file == NULL) return 1;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
  fclose(file);
  return state == 'Z' || state == 'X';
}

static int IsToBeKilled(pid_t pid, int request) {
  const char* path = getenv("KILL_AT_PTRACE");
  FILE* file = path == NULL ? NULL : fopen(path, "re");
  if (file == NULL) return 0;
  int wanted_pid = 0, wanted_request = 0;
  const int found = fscanf(file, "%d %d", &wanted_pid, &wanted_request) == 2 && wanted_pid == pid &&
                    wanted_request == request;
  fclose(file);
  return found && unlink(path) == 0;
}

long ptrace(enum __ptrace_request request, ...) {
  va_list rest;
  va_start(rest, request);
  const pid_t pid = va_arg(rest, pid_t);
  const uintptr_t address = va_arg(rest, uintptr_t), data = va_arg(rest, uintptr_t);
  va_end(rest);
  if (IsToBeKilled(pid, (int)request)) {
    kill(pid, SIGKILL);
    while (!HasEnded(pid)) sched_yield();
  }
  long (*real)(enum __ptrace_request, ...) = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
  return real(request, pid, address, data);
}
