// Part of rekindle-criu-restore.so: a restored task has the POSIX locks that it had.
//
// CRIU lets each task take its locks, and after that map its files, whose descriptors it closes (open_vmas()
// and the restorer). But whoever closes any descriptor of a file gives back all POSIX locks that he has of
// it: a job lost those of the files it has mapped, as SQLite has X-shm. So what a task locks is noted, and
// when all tasks stand ready to go on, before the first is let go, each takes its locks once more.
//
// Then the task is stopped under CRIU's ptrace, with the registers that it will go on with: it makes the
// calls from a `syscall` instruction that it has, and is put back as it was. Its memory is not written to.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "criu/restored_semaphores.h"

#define MOST_LOCKS (1u << 20)
#define MOST_TASKS (1u << 22)  // the kernel's own limit of PIDs
// Another program may have taken one meanwhile.
#define TRIES 200
#define NANOSECONDS_BETWEEN_TRIES 10000000

struct Lock {
  int32_t task;  // its PID as it sees itself
  int32_t fd;
  struct flock what;
};

// Shared between CRIU and the tasks that it makes.
struct Noted {
  uint32_t count;  // may be more than there is room for
  struct Lock locks[MOST_LOCKS];
};

static struct Noted* noted;
static pid_t* seized;
static size_t seized_count;
static int taken_again;
static char text[1 << 22];

static void* Memory(size_t size, int sharing) {
  void* memory = mmap(NULL, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

// Only as much of it takes memory as is noted.
__attribute__((constructor)) static void Begin(void) { noted = Memory(sizeof *noted, MAP_SHARED); }

// In a task, before it becomes what it was.
static int Fcntl(int fd, int command, void* argument) {
  int about_semaphore;
  if (IsAboutSemaphore(fd, command, (int)(intptr_t)argument, &about_semaphore)) return about_semaphore;
  const struct flock* lock = argument;
  const int takes = command == F_SETLKW && lock->l_type != F_UNLCK;
  if (takes && noted == NULL) {
    // It would be lost, and nobody know.
    errno = ENOLCK;
    return -1;
  }
  const long result = syscall(SYS_fcntl, fd, command, argument);
  if (result != 0 || !takes) return (int)result;
  const uint32_t at = __atomic_fetch_add(&noted->count, 1, __ATOMIC_RELAXED);
  if (at >= MOST_LOCKS) return 0;
  noted->locks[at].task = (int32_t)syscall(SYS_getpid);
  noted->locks[at].fd = fd;
  noted->locks[at].what = *lock;
  return 0;
}

#define FCNTL_BODY                      \
  va_list rest;                         \
  va_start(rest, command);              \
  void* argument = va_arg(rest, void*); \
  va_end(rest);                         \
  return Fcntl(fd, command, argument);

int fcntl(int fd, int command, ...) { FCNTL_BODY }
int fcntl64(int fd, int command, ...) { FCNTL_BODY }

static long Ptrace(long request, pid_t task, uintptr_t address, uintptr_t data) {
  return syscall(SYS_ptrace, request, task, address, data);
}

// A stopped task, and what it is to have again.
struct Borrowed {
  pid_t task;
  struct user_regs_struct registers;
  uint64_t blocked_signals;
  uintptr_t rseq_field;  // 0: it has none
  uint64_t rseq_section;
  int stopped;  // by a signal that had come already
  uintptr_t instruction;
};

// A file of /proc/TASK, into `text`, which may cut it off.
static int ReadProc(pid_t task, const char* name) {
  char path[64] = "/proc/";
  char digits[12];
  size_t count = 0, at = strlen(path);
  for (unsigned rest = (unsigned)task; rest > 0; rest /= 10) digits[count++] = (char)('0' + rest % 10);
  while (count > 0) path[at++] = digits[--count];
  path[at++] = '/';
  strcpy(path + at, name);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  size_t length = 0;
  while (length < sizeof text - 1) {
    const ssize_t n = read(fd, text + length, sizeof text - 1 - length);
    if (n <= 0) break;
    length += (size_t)n;
  }
  text[length] = '\0';
  close(fd);
  return 1;
}

// The last number of the line of `text` that begins with `name`; -1 without one.
static long LastNumber(const char* name) {
  const char* at = strstr(text, name);
  if (at == NULL) return -1;
  long number = -1;
  for (at += strlen(name); *at != '\0' && *at != '\n'; ++at) {
    if (*at < '0' || *at > '9') continue;
    for (number = 0; *at >= '0' && *at <= '9'; ++at) number = number * 10 + (*at - '0');
    --at;
  }
  return number;
}

// The PID as the process sees itself; -1: `task` is one of its other threads, or gone.
static long OwnPid(pid_t task) {
  if (!ReadProc(task, "status") || LastNumber("\nTgid:") != task) return -1;
  const long pid = LastNumber("\nNStgid:");
  return pid > 0 ? pid : task;
}

static int HasSyscall(pid_t task, uintptr_t from, uintptr_t to, uintptr_t* where) {
  static unsigned char code[1 << 16];
  for (; from < to; from += sizeof code - 1) {
    size_t length = to - from < sizeof code ? to - from : sizeof code;
    const struct iovec here = {code, length}, there = {(void*)from, length};
    const ssize_t n = process_vm_readv(task, &here, 1, &there, 1, 0);
    for (ssize_t i = 0; i + 1 < n; ++i) {
      if (code[i] != 0x0f || code[i + 1] != 0x05) continue;
      *where = from + (uintptr_t)i;
      return 1;
    }
    if (n < (ssize_t)length) return 0;
  }
  return 0;
}

// The vDSO has one, for what it can't answer itself; a task without it has one in its own code.
static int FindSyscall(pid_t task, uintptr_t* where) {
  if (!ReadProc(task, "maps")) return 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (char* line = text; *line != '\0';) {
      char* end = strchr(line, '\n');
      if (end == NULL) break;
      char* at;
      const uintptr_t from = strtoul(line, &at, 16);
      const uintptr_t to = strtoul(at + 1, &at, 16);
      const int vdso = end - line > 6 && memcmp(end - 6, "[vdso]", 6) == 0;
      if ((pass == 0 ? vdso : at[3] == 'x') && HasSyscall(task, from, to, where)) return 1;
      line = end + 1;
    }
  }
  return 0;
}

// Until its next stop at a system call. 0: it is gone.
static int AwaitSyscallStop(struct Borrowed* borrowed) {
  for (;;) {
    if (Ptrace(PTRACE_SYSCALL, borrowed->task, 0, 0) != 0) return 0;
    int status;
    pid_t waited;
    do {
      waited = waitpid(borrowed->task, &status, __WALL);
    } while (waited < 0 && errno == EINTR);
    if (waited != borrowed->task || !WIFSTOPPED(status)) {
      errno = ESRCH;
      return 0;
    }
    const int signal = WSTOPSIG(status);
    if (status >> 16 == 0 && (signal == SIGTRAP || signal == (SIGTRAP | 0x80))) return 1;
    // All that can be blocked is.
    if (status >> 16 == 0 && signal == SIGSTOP) borrowed->stopped = 1;
  }
}

static int Call(struct Borrowed* borrowed, long number, const uintptr_t arguments[6], long* result) {
  struct user_regs_struct registers = borrowed->registers;
  registers.rax = (unsigned long long)number;
  registers.orig_rax = (unsigned long long)-1;
  registers.rip = borrowed->instruction;
  registers.rdi = arguments[0];
  registers.rsi = arguments[1];
  registers.rdx = arguments[2];
  registers.r10 = arguments[3];
  registers.r8 = arguments[4];
  registers.r9 = arguments[5];
  if (Ptrace(PTRACE_SETREGS, borrowed->task, 0, (uintptr_t)&registers) != 0 || !AwaitSyscallStop(borrowed) ||
      !AwaitSyscallStop(borrowed) || Ptrace(PTRACE_GETREGS, borrowed->task, 0, (uintptr_t)&registers) != 0)
    return 0;
  *result = (long)registers.rax;
  return 1;
}

static int Borrow(struct Borrowed* borrowed) {
  const pid_t task = borrowed->task;
  if (Ptrace(PTRACE_GETREGS, task, 0, (uintptr_t)&borrowed->registers) != 0 ||
      Ptrace(PTRACE_GETSIGMASK, task, sizeof(uint64_t), (uintptr_t)&borrowed->blocked_signals) != 0)
    return 0;
  if (!FindSyscall(task, &borrowed->instruction)) {
    errno = ENOEXEC;
    return 0;
  }
  // A kernel that sees the task outside of its restartable sequence forgets that it was in one.
  struct {
    uint64_t address;
    uint32_t size, signature, flags, padding;
  } rseq;
  if (Ptrace(PTRACE_GET_RSEQ_CONFIGURATION, task, sizeof rseq, (uintptr_t)&rseq) == sizeof rseq &&
      rseq.address != 0) {
    borrowed->rseq_field = rseq.address + 8;
    if (Ptrace(PTRACE_PEEKDATA, task, borrowed->rseq_field, (uintptr_t)&borrowed->rseq_section) != 0)
      return 0;
  }
  const uint64_t all = ~(uint64_t)0;
  return Ptrace(PTRACE_SETSIGMASK, task, sizeof all, (uintptr_t)&all) == 0;
}

static int GiveBack(const struct Borrowed* borrowed) {
  const pid_t task = borrowed->task;
  if (borrowed->rseq_field != 0 && borrowed->rseq_section != 0 &&
      Ptrace(PTRACE_POKEDATA, task, borrowed->rseq_field, borrowed->rseq_section) != 0)
    return 0;
  if (Ptrace(PTRACE_SETREGS, task, 0, (uintptr_t)&borrowed->registers) != 0 ||
      Ptrace(PTRACE_SETSIGMASK, task, sizeof(uint64_t), (uintptr_t)&borrowed->blocked_signals) != 0)
    return 0;
  return !borrowed->stopped || kill(task, SIGSTOP) == 0;
}

// `page`: in the task.
static int Take(struct Borrowed* borrowed, const struct Lock* lock, uintptr_t page) {
  uintptr_t words[sizeof lock->what / sizeof(uintptr_t)];
  memcpy(words, &lock->what, sizeof words);
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (Ptrace(PTRACE_POKEDATA, borrowed->task, page + i * sizeof *words, words[i]) != 0) return 0;
  }
  const uintptr_t arguments[6] = {(uintptr_t)lock->fd, F_SETLK, page, 0, 0, 0};
  for (int tries = 0; tries < TRIES; ++tries) {
    long result;
    if (!Call(borrowed, SYS_fcntl, arguments, &result)) return 0;
    if (result == 0) return 1;
    errno = (int)-result;
    if (errno != EAGAIN && errno != EACCES) return 0;
    const struct timespec pause = {0, NANOSECONDS_BETWEEN_TRIES};
    nanosleep(&pause, NULL);
  }
  errno = EAGAIN;
  return 0;
}

static int TakeAgain(pid_t task, int32_t pid) {
  struct Borrowed borrowed = {.task = task};
  if (!Borrow(&borrowed)) return 0;
  const uintptr_t map[6] = {0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uintptr_t)-1, 0};
  long page;
  if (!Call(&borrowed, SYS_mmap, map, &page)) return 0;
  if (page < 0 && page > -4096) {
    errno = (int)-page;
    return 0;
  }
  for (uint32_t i = 0; i < noted->count; ++i) {
    if (noted->locks[i].task == pid && !Take(&borrowed, &noted->locks[i], (uintptr_t)page)) return 0;
  }
  const uintptr_t unmap[6] = {(uintptr_t)page, 4096, 0, 0, 0, 0};
  long unmapped;
  return Call(&borrowed, SYS_munmap, unmap, &unmapped) && GiveBack(&borrowed);
}

static int TakeAllAgain(void) {
  if (noted->count > MOST_LOCKS) {
    errno = ENOLCK;
    return 0;
  }
  for (size_t i = 0; i < seized_count; ++i) {
    const long pid = OwnPid(seized[i]);
    for (uint32_t lock = 0; pid > 0 && lock < noted->count; ++lock) {
      if (noted->locks[lock].task != pid) continue;
      if (!TakeAgain(seized[i], (int32_t)pid)) return 0;
      break;
    }
  }
  return 1;
}

static void NoteSeized(pid_t task) {
  if (seized == NULL) seized = Memory(MOST_TASKS * sizeof *seized, MAP_PRIVATE);
  if (seized != NULL && seized_count < MOST_TASKS) seized[seized_count++] = task;
}

// What CRIU can't do it reports with `errno`, and ends the restored tasks.
long ptrace(enum __ptrace_request request, ...) {
  va_list rest;
  va_start(rest, request);
  const pid_t task = va_arg(rest, pid_t);
  const uintptr_t address = va_arg(rest, uintptr_t), data = va_arg(rest, uintptr_t);
  va_end(rest);
  if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
    // As the C library has it.
    long word = 0;
    if (Ptrace(request, task, address, (uintptr_t)&word) != 0) return -1;
    errno = 0;
    return word;
  }
  if (request == PTRACE_DETACH && !taken_again && noted != NULL && noted->count > 0) {
    taken_again = 1;
    if (!TakeAllAgain()) return -1;
  }
  const long result = Ptrace(request, task, address, data);
  if (request == PTRACE_SEIZE && result == 0) NoteSeized(task);
  return result;
}
