// The watch over a parked process. Its threads run, and one that touches memory of the device that is out, as
// cuStreamSynchronize, cuCtxSynchronize and cuEventSynchronize do with driver 580, would die of SIGSEGV: the
// driver has put inaccessible memory in its place. Here it stands still at its instruction instead, and
// repeats that when the memory is there again. Seen to work on an H200 (docs/gpu-results.md). C.
#pragma once

#include <sys/types.h>

// The names of a watching process: by them Rekindle knows who traces a parked process. SIGUSR1 makes it let
// go of all threads but those that stand at such an instruction, and take the second name.
#define WATCH_NAME "rk-gpu-watch"
#define FAULT_WATCH_NAME "rk-gpu-fault"

// The thread that traces `id` of the process `pid`; 0: nobody; -1: gone.
pid_t TracerOf(pid_t pid, pid_t id);

// Calls `act` with each thread of these processes that the calling thread traces; how often it gave 1.
int ForEachTraced(const pid_t* pids, int count, int (*act)(pid_t id));

// All threads of these processes are traced by the calling thread, with PTRACE_SEIZE, and stand still: they
// go on, and are watched until they have ended, or SIGUSR1 has come and none stands at an instruction. The
// descriptor `begun` is closed when they are.
void WatchThreads(const pid_t* pids, int count, int begun);
