// Part of rekindle-criu-preload.so: system calls that the freeze interrupts go on afterwards.
//
// A task that is stopped in a system call leaves it with a result that only the kernel sees, and the kernel
// acts on it when the task runs again. CRIU acts itself, for the image as for the job that runs on:
// - ERESTART_RESTARTBLOCK, of poll(), nanosleep() and futex() with a time-out, which the kernel goes on with
//   for what is left of the time: CRIU makes EINTR of it. A program without signal handlers does not expect
//   that: it sleeps too short, or takes a healthy connection for a broken one.
// - ERESTARTNOHAND and its like: CRIU has the call begin anew. The kernel does so as well, unless a signal
//   has come for which there is a handler: then the call ends with EINTR, by which the program learns of it.
//
// Here the job that runs on gets its registers as the freeze found them, in the moment in which CRIU lets go
// of it. What is left of a time-out would be lost to a process in which CRIU's parasite ran as a daemon,
// because the parasite ends with rt_sigreturn(), which forbids to go on (restore_sigcontext in the kernel's
// arch/x86/kernel/signal.c). That call is not carried out then: general registers and signal mask CRIU sets
// itself afterwards, and the extended registers are put back here.
// What is left of a time-out can't be carried in an image. So CRIU is told ERESTARTNOHAND in its place: in
// the job that comes back the whole time-out counts again.
//
// Whatever is unusual is left as CRIU does it.
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <unistd.h>

#include "ckpt/other_deaths.h"

#ifdef __x86_64__

// Of the kernel's <linux/errno.h>.
#define ERROR_RESTART_SYSTEM_CALL 512
#define ERROR_RESTART_NO_INTERRUPT 513
#define ERROR_RESTART_NO_HANDLER 514
#define ERROR_RESTART_BLOCK 516

#define SHADOW_STACK_REGISTERS 0x204  // NT_X86_SHSTK
#define SYSCALL_INSTRUCTION_BYTES 2

// The extended registers of a task, at most.
#define EXTENDED_BYTES (16u << 10)
#define SLOTS 65536u  // a power of two, more than tasks that a job has

typedef struct user_regs_struct Registers;

struct Wait {
  pid_t task;
  int error;      // what the freeze has found
  uint64_t call;  // 0: unknown
  uint64_t next_instruction;
  uint8_t* extended;
  size_t extended_bytes;
};

// By task, open addressing; a task stays for good.
static struct Wait* waits;
static size_t wait_count;

static long Ptrace(long request, pid_t task, void* address, void* data) {
  return syscall(SYS_ptrace, request, task, address, data);
}

static int GetSet(pid_t task, uintptr_t kind, void* to, size_t* bytes) {
  struct iovec part = {to, *bytes};
  if (Ptrace(PTRACE_GETREGSET, task, (void*)kind, &part) != 0) return 0;
  *bytes = part.iov_len;
  return 1;
}

static int PutSet(pid_t task, uintptr_t kind, void* from, size_t bytes) {
  struct iovec part = {from, bytes};
  return Ptrace(PTRACE_SETREGSET, task, (void*)kind, &part) == 0;
}

// False for a 32-bit task too.
static int GetRegisters(pid_t task, Registers* to) {
  size_t bytes = sizeof *to;
  return GetSet(task, NT_PRSTATUS, to, &bytes) && bytes == sizeof *to;
}

static void* Memory(size_t bytes) {
  void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? NULL : at;
}

static struct Wait* Find(pid_t task, int make) {
  if (waits == NULL) {
    if (!make) return NULL;
    waits = Memory(SLOTS * sizeof *waits);
    if (waits == NULL) return NULL;
  }
  uint32_t slot = (uint32_t)task * 2654435761u % SLOTS;
  while (waits[slot].task != 0 && waits[slot].task != task) slot = (slot + 1) % SLOTS;
  struct Wait* wait = &waits[slot];
  if (wait->task == task || !make) return wait->task == task ? wait : NULL;
  if (wait_count >= SLOTS / 2) return NULL;
  wait->task = task;
  ++wait_count;
  return wait;
}

static int CanBeRestarted(uint64_t call) {
  return call == SYS_poll || call == SYS_nanosleep || call == SYS_clock_nanosleep || call == SYS_futex;
}

// Which call waits here? The kernel goes on with a wait by restart_syscall(), and that is what a second
// freeze finds; then the program tells: "mov $call, %eax; syscall". 0: no telling.
static uint64_t CallOf(pid_t task, const Registers* registers) {
  uint64_t call = registers->orig_rax;
  if (call == SYS_restart_syscall) {
    uint8_t code[7];
    struct iovec to = {code, sizeof code};
    struct iovec from = {(void*)(registers->rip - sizeof code), sizeof code};
    if (syscall(SYS_process_vm_readv, task, &to, 1ul, &from, 1ul, 0ul) != (long)sizeof code) return 0;
    if (code[0] != 0xb8 || code[5] != 0x0f || code[6] != 0x05) return 0;
    call = code[1] | (uint64_t)code[2] << 8 | (uint64_t)code[3] << 16 | (uint64_t)code[4] << 24;
  }
  return CanBeRestarted(call) ? call : 0;
}

static void KeepExtendedRegisters(struct Wait* wait) {
  wait->extended = Memory(EXTENDED_BYTES);
  size_t bytes = EXTENDED_BYTES;
  if (wait->extended == NULL || !GetSet(wait->task, NT_X86_XSTATE, wait->extended, &bytes)) return;
  // A buffer that was filled may have been too small.
  if (bytes < EXTENDED_BYTES) wait->extended_bytes = bytes;
}

// CRIU reads the registers of a task.
static void OnRegistersRead(pid_t task, Registers* registers) {
  const int64_t error = -(int64_t)registers->rax;
  if ((int64_t)registers->orig_rax < 0) return;  // in no system call
  if (error != ERROR_RESTART_SYSTEM_CALL && error != ERROR_RESTART_NO_INTERRUPT &&
      error != ERROR_RESTART_NO_HANDLER && error != ERROR_RESTART_BLOCK) {
    return;
  }
  struct Wait* wait = Find(task, 1);
  if (wait == NULL) return;
  if (wait->error == 0) {
    wait->error = (int)error;
    wait->call = error == ERROR_RESTART_BLOCK ? CallOf(task, registers) : registers->orig_rax;
    wait->next_instruction = registers->rip;
    if (error == ERROR_RESTART_BLOCK) KeepExtendedRegisters(wait);
  }
  if (error != ERROR_RESTART_BLOCK || wait->call == 0 || wait->next_instruction != registers->rip) return;
  registers->orig_rax = wait->call;
  registers->rax = (uint64_t)-ERROR_RESTART_NO_HANDLER;
}

// CRIU lets the task run up to its next system call, or to the end of the one that it enters.
static void BeforeSystemCall(pid_t task) {
  struct Wait* wait = Find(task, 0);
  Registers registers;
  if (wait == NULL || wait->extended_bytes == 0 || !GetRegisters(task, &registers)) return;
  if (registers.orig_rax != SYS_rt_sigreturn || (int64_t)registers.rax != -ENOSYS) return;
  uint64_t shadow_stack = 0;
  size_t bytes = sizeof shadow_stack;
  if (GetSet(task, SHADOW_STACK_REGISTERS, &shadow_stack, &bytes)) return;  // rt_sigreturn() moves it
  if (!PutSet(task, NT_X86_XSTATE, wait->extended, wait->extended_bytes)) return;
  registers.orig_rax = (uint64_t)-1;
  PutSet(task, NT_PRSTATUS, &registers, sizeof registers);
}

static void BeforeLettingGo(pid_t task) {
  struct Wait* wait = Find(task, 0);
  Registers registers;
  if (wait == NULL || !GetRegisters(task, &registers)) return;
  const int64_t result = (int64_t)registers.rax;
  const int at_end = registers.rip == wait->next_instruction;
  const int to_begin_anew = registers.rip == wait->next_instruction - SYSCALL_INSTRUCTION_BYTES &&
                            registers.rax == registers.orig_rax;
  const int as_told = at_end && result == -ERROR_RESTART_NO_HANDLER;  // CRIU has given up early
  const int interrupted = at_end && result == -EINTR && wait->error == ERROR_RESTART_BLOCK;
  if (!to_begin_anew && !as_told && !interrupted) return;
  registers.rip = wait->next_instruction;
  registers.rax = (uint64_t) - (int64_t)wait->error;
  PutSet(task, NT_PRSTATUS, &registers, sizeof registers);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list rest;
  va_start(rest, request);
  const pid_t task = va_arg(rest, pid_t);
  void* const address = va_arg(rest, void*);
  void* data = va_arg(rest, void*);
  va_end(rest);

  // As the C library does it: what is read is the result.
  const int reads_a_word =
      request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
  long word = 0;
  if (reads_a_word) data = &word;

  const int error = errno;
  if (request == (enum __ptrace_request)PTRACE_SYSCALL) BeforeSystemCall(task);
  if (request == (enum __ptrace_request)PTRACE_DETACH) BeforeLettingGo(task);
  if (request == (enum __ptrace_request)PTRACE_SYSCALL || request == (enum __ptrace_request)PTRACE_CONT)
    NoteResumed(task);
  errno = error;
  const long result = Ptrace(request, task, address, data);
  if (result < 0) return result;
  if (reads_a_word) {
    errno = 0;
    return word;
  }
  if (request == (enum __ptrace_request)PTRACE_GETREGSET && address == (void*)NT_PRSTATUS) {
    const struct iovec* part = data;
    if (part->iov_len == sizeof(Registers)) OnRegistersRead(task, part->iov_base);
    errno = error;
  }
  return result;
}

#endif
