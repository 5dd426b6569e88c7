// Within rekindle-criu-preload.so: C.
#pragma once

#include <sys/types.h>

// CRIU lets a task run until it traps (PTRACE_CONT, PTRACE_SYSCALL).
void NoteResumed(pid_t task);
