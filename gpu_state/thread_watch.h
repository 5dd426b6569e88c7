// The watch over a parked process. Its threads run, and one that touches memory of the device that is out, as
// cuStreamSynchronize, cuCtxSynchronize and cuEventSynchronize do with driver 580, would die of SIGSEGV: the
// driver has put inaccessible memory in its place, or nothing. Here it stands still at its instruction
// instead, and repeats that when the memory is there again. Seen to work on an H200 (docs/gpu-results.md).
// Other inaccessible memory is the program's own business: runtimes stop their threads with it (Julia, the
// JVM). C.
#pragma once

#include <stdint.h>
#include <sys/types.h>

// The names of a watching process: by them Rekindle, an older or newer one too, knows who traces a parked
// process. SIGUSR1 makes it let go of all threads but those that stand at such an instruction, and take the
// second name. Its words may be others (KEEPER_VERSION); this stays.
#define WATCH_NAME "rk-gpu-watch"
#define FAULT_WATCH_NAME "rk-gpu-fault"
// Its descriptor of the other end of a keeper's socket (KEEPER_SOCKET). Whoever may take that from it
// (pidfd_getfd) and says something there has it stop all threads and be their keeper again: they do not run
// in between.
#define WATCH_PEER 60
// Its descriptor of a memfd in which whoever parked its processes has noted what they had on which GPU
// (Ledger::Note), for those who find no ledger. It only keeps it. One of an older Rekindle has none.
#define WATCH_NOTE 61

// The thread that traces `id` of the process `pid`; 0: nobody; -1: it has ended.
pid_t TracerOf(pid_t pid, pid_t id);

// Before a process's device memory goes out: remembers where that is.
void NoteDeviceMemory(pid_t pid);
// The same, as somebody has remembered it.
void NoteDeviceArea(pid_t pid, uint64_t address, uint64_t bytes);

// Lets go of all threads of these processes, which the calling thread traces and which stand still. Those
// that stand where they need what is missing go on only if it is `there`; how many others there are in all.
int LetGoOf(const pid_t* pids, int count, int there);

// All threads of these processes are traced by the calling thread, with PTRACE_SEIZE, and stand still: they
// go on, and are watched until they have ended, or SIGUSR1 has come and none stands at such an instruction:
// 0; or until somebody has spoken to KEEPER_SOCKET, and all stand: 1. The socket that is there is closed when
// they are watched.
int WatchThreads(const pid_t* pids, int count);
