#define _GNU_SOURCE
#include "gpu_state/thread_keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_THREADS 256
// For a thread to come out of a call of the driver, when nobody gives orders any more.
#define MAY_TAKE_MS 30000
#define LOOK_AGAIN_MS 100
#define SYSCALL_STOP (SIGTRAP | 0x80)

enum RunState {
  kStands,
  kRuns,
  kHasMapped,     // until it may go on
  kEntersAdvice,  // into a madvise of ours, in place of its next instruction
  kReturnsFromAdvice,
};

struct Thread {
  pid_t id;
  enum RunState state;
  uint64_t least;               // bytes of a mapping that is to be of huge pages; 0: none
  uint64_t looked_for, mapped;  // bytes of all of these; 0: nobody knows how many these are
  int in_call;                  // at its next stop it returns from a system call
  int maps;                     // that is one to look at
  uint64_t mask;                // its signals'
  uint64_t address, bytes, flags;
  struct user_regs_struct registers;  // its own, during a call of ours
};

struct Keeper {
  int socket;
  unsigned long options;
  int pausing, error;
  int count;
  struct Thread threads[MOST_THREADS];
};

static void Say(struct Keeper* keeper, enum KeeperWord what, int id, uint64_t address, uint64_t bytes) {
  struct KeeperMessage message;
  memset(&message, 0, sizeof message);
  message.what = what;
  message.id = id;
  message.address = address;
  message.bytes = bytes;
  // Nobody there: the reading end notices.
  while (send(keeper->socket, &message, sizeof message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// Each stop at a system call costs it as much as some dozens of calls: only until it has what it needs.
static int StopsAtCalls(const struct Thread* thread) {
  if (thread->state != kRuns) return 1;  // in a call of ours
  return thread->least && (thread->looked_for == 0 || thread->mapped < thread->looked_for);
}

static void LetRun(const struct Keeper* keeper, struct Thread* thread, long signal) {
  // Any stop before the one that was asked for takes its place.
  if (keeper->pausing && thread->state == kRuns) ptrace(PTRACE_INTERRUPT, thread->id, 0, 0);
  ptrace(StopsAtCalls(thread) ? PTRACE_SYSCALL : PTRACE_CONT, thread->id, 0, signal);
}

// 0, or errno.
static int Run(struct Keeper* keeper, pid_t id, uint64_t least, uint64_t looked_for) {
  struct Thread* thread = 0;
  for (int i = 0; i < keeper->count; ++i) {
    if (keeper->threads[i].id == id) thread = &keeper->threads[i];
  }
  if (!thread) {
    if (keeper->count == MOST_THREADS) return EMFILE;
    thread = &keeper->threads[keeper->count];
    memset(thread, 0, sizeof *thread);
    thread->id = id;
  }
#ifdef __x86_64__
  thread->least = least;
  thread->looked_for = looked_for;
  thread->mapped = 0;
#else
  (void)least;
  (void)looked_for;
#endif
  thread->in_call = 0;
  // It handles no signal while the others stand: a handler might wait for one of them.
  uint64_t all = ~(uint64_t)0;
  if (ptrace(PTRACE_GETSIGMASK, id, sizeof thread->mask, &thread->mask) != 0 ||
      ptrace(PTRACE_SETSIGMASK, id, sizeof all, &all) != 0 ||
      ptrace(PTRACE_SETOPTIONS, id, 0, PTRACE_O_TRACESYSGOOD) != 0) {
    return errno;
  }
  if (thread == &keeper->threads[keeper->count]) ++keeper->count;
  thread->state = kRuns;
  LetRun(keeper, thread, 0);
  return 0;
}

static void Stands(struct Keeper* keeper, struct Thread* thread) {
  if (ptrace(PTRACE_SETSIGMASK, thread->id, sizeof thread->mask, &thread->mask) != 0) keeper->error = errno;
  // Where the kernel can't suspend seccomp, CRIU has not asked for it either.
  if (ptrace(PTRACE_SETOPTIONS, thread->id, 0, keeper->options) != 0)
    ptrace(PTRACE_SETOPTIONS, thread->id, 0, PTRACE_O_TRACESYSGOOD);
  thread->state = kStands;
}

#ifdef __x86_64__
// At the return from a mmap: the thread is made to call madvise before it goes on. Returns 0 where it can't.
static int BeginAdvice(const struct Keeper* keeper, struct Thread* thread) {
  const uint64_t kSyscallInstruction = 0x050f;
  errno = 0;
  const uint64_t code = (uint64_t)ptrace(PTRACE_PEEKTEXT, thread->id, thread->registers.rip - 2, 0);
  if (errno != 0 || (code & 0xffff) != kSyscallInstruction) return 0;
  struct user_regs_struct call = thread->registers;
  call.rip -= 2;
  call.rax = SYS_madvise;
  call.orig_rax = (unsigned long long)-1;
  call.rdi = thread->address;
  call.rsi = thread->bytes;
  call.rdx = MADV_HUGEPAGE;
  if (ptrace(PTRACE_SETREGS, thread->id, 0, &call) != 0) return 0;
  thread->state = kEntersAdvice;
  LetRun(keeper, thread, 0);
  return 1;
}

static void AtSystemCall(struct Keeper* keeper, struct Thread* thread) {
  struct user_regs_struct* own = &thread->registers;
  if (thread->state == kEntersAdvice) {
    thread->state = kReturnsFromAdvice;
  } else if (thread->state == kReturnsFromAdvice) {
    struct user_regs_struct now;
    const int advised = ptrace(PTRACE_GETREGS, thread->id, 0, &now) == 0 && now.rax == 0;
    ptrace(PTRACE_SETREGS, thread->id, 0, own);
    thread->state = kRuns;
    if (advised && !keeper->pausing) {
      thread->state = kHasMapped;
      Say(keeper, kKeeperMapped, thread->id, thread->address, thread->bytes);
      return;
    }
  } else if (!thread->in_call) {
    thread->in_call = 1;
    thread->maps = ptrace(PTRACE_GETREGS, thread->id, 0, own) == 0 && own->orig_rax == SYS_mmap &&
                   own->rsi >= thread->least && own->rdx == (PROT_READ | PROT_WRITE) &&
                   (own->r10 & (MAP_ANONYMOUS | MAP_PRIVATE)) == (MAP_ANONYMOUS | MAP_PRIVATE);
    thread->bytes = own->rsi;
    thread->flags = own->r10;
    if (thread->maps && (own->r10 & MAP_POPULATE)) {
      // The kernel would make all of it of small pages, alone, before we can say anything.
      own->r10 &= ~(unsigned long long)MAP_POPULATE;
      ptrace(PTRACE_SETREGS, thread->id, 0, own);
    }
  } else {
    thread->in_call = 0;
    if (thread->maps && ptrace(PTRACE_GETREGS, thread->id, 0, own) == 0) {
      own->r10 = thread->flags;
      thread->address = own->rax;
      if (own->rax < (uint64_t)-4095) {
        thread->mapped += thread->bytes;
        if (BeginAdvice(keeper, thread)) return;
      }
      ptrace(PTRACE_SETREGS, thread->id, 0, own);
    }
  }
  LetRun(keeper, thread, 0);
}
#else
static void AtSystemCall(struct Keeper* keeper, struct Thread* thread) {
  (void)keeper;
  LetRun(keeper, thread, 0);
}
#endif

// One that has stopped, or ended.
static void Look(struct Keeper* keeper, struct Thread* thread, int status) {
  if (!WIFSTOPPED(status)) {
    thread->state = kStands;
    thread->id = 0;
    keeper->error = ESRCH;
    return;
  }
  const int signal = WSTOPSIG(status), event = status >> 16;
  if (event == PTRACE_EVENT_STOP) {
    if (keeper->pausing && thread->state == kRuns) {
      Stands(keeper, thread);
    } else {
      LetRun(keeper, thread, 0);
    }
  } else if (signal == SYSCALL_STOP) {
    AtSystemCall(keeper, thread);
  } else {
    LetRun(keeper, thread, event == 0 ? signal : 0);
  }
}

static int AllStand(const struct Keeper* keeper) {
  for (int i = 0; i < keeper->count; ++i) {
    if (keeper->threads[i].state != kStands) return 0;
  }
  return 1;
}

static void Pause(struct Keeper* keeper) {
  keeper->pausing = 1;
  for (int i = 0; i < keeper->count; ++i) {
    struct Thread* thread = &keeper->threads[i];
    if (thread->state == kStands) continue;
    if (thread->state != kHasMapped) {
      ptrace(PTRACE_INTERRUPT, thread->id, 0, 0);
      continue;
    }
    thread->state = kRuns;
    LetRun(keeper, thread, 0);
  }
}

static void LookAtAll(struct Keeper* keeper) {
  for (int i = 0; i < keeper->count; ++i) {
    struct Thread* thread = &keeper->threads[i];
    while (thread->state != kStands && thread->state != kHasMapped) {
      int status = 0;
      const pid_t id = waitpid(thread->id, &status, __WALL | WNOHANG);
      if (id == 0 || (id < 0 && errno == EINTR)) break;
      Look(keeper, thread, id < 0 ? 0 : status);
    }
  }
}

static int Talk(struct Keeper* keeper, int stopped, int (*hold)(int pid),
                void (*area)(int pid, uint64_t address, uint64_t bytes)) {
  for (;;) {
    LookAtAll(keeper);
    if (keeper->pausing && AllStand(keeper)) {
      keeper->pausing = 0;
      Say(keeper, kKeeperPaused, keeper->error, 0, 0);
      keeper->error = 0;
    }
    struct pollfd both[2] = {{keeper->socket, POLLIN, 0}, {stopped, POLLIN, 0}};
    if (poll(both, 2, -1) < 0 && errno != EINTR) return -1;
    struct signalfd_siginfo info;
    while (read(stopped, &info, sizeof info) > 0) {
    }
    struct KeeperMessage message;
    const ssize_t got = recv(keeper->socket, &message, sizeof message, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got != (ssize_t)sizeof message) return -1;
    switch (message.what) {
      case kKeeperHold:
        Say(keeper, kKeeperStands, hold ? hold(message.id) : ENOSYS, 0, KEEPER_VERSION);
        break;
      case kKeeperArea:
        if (area) area(message.id, message.address, message.bytes);
        break;
      case kKeeperRun:
        Say(keeper, kKeeperRuns, Run(keeper, message.id, message.bytes, message.address), 0, 0);
        break;
      case kKeeperGoOn:
        for (int i = 0; i < keeper->count; ++i) {
          struct Thread* thread = &keeper->threads[i];
          if (thread->id != message.id || thread->state != kHasMapped) continue;
          thread->state = kRuns;
          LetRun(keeper, thread, 0);
        }
        break;
      case kKeeperPause:
        Pause(keeper);
        break;
      case kKeeperWatch:
        return kKeeperWatch;
      case kKeeperEnd:
        return message.id;
      default:
        return -1;
    }
  }
}

int ServeKeeper(int socket, unsigned long options, int (*hold)(int pid),
                void (*area)(int pid, uint64_t address, uint64_t bytes)) {
  static struct Keeper keeper;
  memset(&keeper, 0, sizeof keeper);
  keeper.socket = socket;
  keeper.options = options;
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  // Blocked, so that none is lost between a look and the wait.
  sigprocmask(SIG_BLOCK, &child, &before);
  const int stopped = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
  int result = stopped < 0 ? -1 : Talk(&keeper, stopped, hold, area);
  if (!AllStand(&keeper)) {
    // Whoever gave the orders is gone: none stays in a call of ours.
    Pause(&keeper);
    for (int tries = 0; tries < MAY_TAKE_MS / LOOK_AGAIN_MS; ++tries) {
      LookAtAll(&keeper);
      struct pollfd one = {stopped, POLLIN, 0};
      if (AllStand(&keeper) || stopped < 0) break;
      poll(&one, 1, LOOK_AGAIN_MS);
      struct signalfd_siginfo info;
      while (read(stopped, &info, sizeof info) > 0) {
      }
    }
    if (!AllStand(&keeper)) result = kKeeperHangs;
  }
  if (stopped >= 0) close(stopped);
  sigprocmask(SIG_SETMASK, &before, 0);
  return result;
}
