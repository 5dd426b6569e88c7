// While a process's device memory is out or on the way, its threads must stand still: one that synchronizes
// then touches what is not there and dies of it (seen with driver 580: cuStreamSynchronize,
// cuCtxSynchronize, cuEventSynchronize). Only the driver's own thread in the process (its "restore thread",
// cuCheckpointProcessGetRestoreThreadId) has work to do. The keeper is whoever traces the process: the
// program rekindle-gpu-keeper, or CRIU with our plugin in it. It runs these threads as Rekindle tells it to,
// and on the way has the memory that they map for device state made of huge pages, without which the driver
// spends most of a checkpoint in page faults.
//
// This is what both say to each other, over a SOCK_SEQPACKET socket: one struct a packet. C, and without
// the C library's state: it runs within CRIU.
#pragma once

#include <stdint.h>

// The numbers stay: a watch may be of an older Rekindle than whoever speaks to it next, or of a newer one.
enum KeeperWord {
  // To the keeper.
  kKeeperHold = 1,  // the process `id`: all its threads stand still. The program's only
  kKeeperRun = 2,   // its thread `id`; mappings of at least `bytes` are to be of huge pages, 0: none. Once it
                    // has `address` bytes of those, no more are looked for; 0: always
  kKeeperGoOn = 3,  // after kKeeperMapped: the thread `id`
  kKeeperPause = 4,  // the threads that run stand still again
  kKeeperWatch = 5,  // all run on, and are watched (thread_watch.h); it hangs up. The program's only
  kKeeperEnd = 6,    // `id` 0: well, the device memory is there; the program then lets go of all that stand
                     // still. 1: it is not, or nobody knows. CRIU lets go of them in its time. 2, to CRIU
                     // alone: it is out, and those that use a GPU are stopped (SIGSTOP) before they go on
  kKeeperArea = 11,  // `bytes` at `address` in the process `id` are memory of a device, or were before that
                     // went out. After kKeeperHold; no answer. The program's only; not KEEPER_WITHOUT_AREAS
  // From the keeper.
  kKeeperStands = 7,  // `id`: 0, or errno. After kKeeperHold, `bytes`: KEEPER_VERSION. Of CRIU, at once:
                      // `address`: a KeeperMoment, `bytes`: has it failed
  kKeeperMapped = 8,  // the thread `id` has mapped `bytes` at `address` and waits
  kKeeperPaused = 9,  // `id`: 0, or errno
  kKeeperRuns = 10,   // `id`: 0, or errno. After kKeeperRun
};

// Of the words. Programs of before 2026-11-28 tell 0; those of the days after that answer kKeeperHold with
// another word, as all their numbers from kKeeperRun on are greater by one.
#define KEEPER_WITHOUT_AREAS 0
#define KEEPER_VERSION 2

// When CRIU asks.
enum KeeperMoment {
  kKeeperBegins = 1,  // a dump has the threads stand still next; so far they run
  kKeeperFrozen,      // it has all threads stand still, and has looked at nothing else yet
  kKeeperDumped,      // they go on, or end, next
  kKeeperRestored,    // they go on next
};

struct KeeperMessage {
  uint32_t what;
  int32_t id;
  uint64_t address, bytes;
};

// The keeper program's descriptor of the socket, and what CRIU finds in its environment: the socket's path.
#define KEEPER_PROGRAM "rekindle-gpu-keeper"
#define KEEPER_SOCKET 3
#define KEEPER_PATH "REKINDLE_GPU_KEEPER"

enum { kKeeperHangs = -2 };

#ifdef __cplusplus
extern "C" {
#endif

// Until kKeeperEnd, whose `id` it returns (0 to 2), kKeeperWatch, which it returns, or the end of the
// connection: -1. Threads named by kKeeperRun are traced by the calling thread, with PTRACE_SEIZE, and stand
// still; `options` are theirs again when they do. kKeeperHangs: one of them does not.
// `hold` carries out kKeeperHold: 0 or errno; `area` kKeeperArea.
int ServeKeeper(int socket, unsigned long options, int (*hold)(int pid),
                void (*area)(int pid, uint64_t address, uint64_t bytes));

#ifdef __cplusplus
}
#endif
