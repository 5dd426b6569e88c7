// Waits with a time-out, in several threads, each in a system call of its own. Each that ends writes a line
// "NAME RESULT ERROR MILLISECONDS" to standard output, and after the last one "done" ends the program.
//
// With "signals" it waits without end for signals instead, and writes "interrupted" whenever SIGUSR1 has
// come.
//
// Usage: timed_waits MILLISECONDS|signals
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long wait_ms;

static long Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void Tell(const char* name, long result, int error, long began) {
  printf("%s %ld %d %ld\n", name, result, result < 0 ? error : 0, Now() - began);
  fflush(stdout);
}

static struct timespec Duration(void) {
  struct timespec duration = {wait_ms / 1000, wait_ms % 1000 * 1000000};
  return duration;
}

static void* Sleep(void* unused) {
  (void)unused;
  const struct timespec duration = Duration();
  struct timespec left;
  long began = Now();
  long result = nanosleep(&duration, &left);
  Tell("nanosleep", result, errno, began);
  return NULL;
}

static void* SleepInPlace(void* unused) {
  (void)unused;
  struct timespec duration = Duration();
  long began = Now();
  long result = nanosleep(&duration, &duration);
  Tell("in-place", result, errno, began);
  return NULL;
}

static void* WaitForSemaphore(void* unused) {
  (void)unused;
  sem_t never;
  sem_init(&never, 0, 0);
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  const struct timespec duration = Duration();
  until.tv_sec += duration.tv_sec + (until.tv_nsec + duration.tv_nsec) / 1000000000;
  until.tv_nsec = (until.tv_nsec + duration.tv_nsec) % 1000000000;
  long began = Now();
  long result = sem_clockwait(&never, CLOCK_MONOTONIC, &until);
  Tell("semaphore", result, errno, began);
  return NULL;
}

static void* PollInThread(void* unused) {
  (void)unused;
  long began = Now();
  long result = poll(NULL, 0, (int)wait_ms);
  Tell("thread-poll", result, errno, began);
  return NULL;
}

// poll() by the first thread, called as the C library does it, with something in every vector register:
// result 1 when any of it has changed.
static void PollWithFullRegisters(void) {
  long began = Now();
  long result = 0;
#if defined(__x86_64__)
  static unsigned char before[16 * 32], after[16 * 32];
  for (size_t i = 0; i < sizeof before; ++i) before[i] = (unsigned char)(i * 7 + 3);
  const int wide = __builtin_cpu_supports("avx");
  register long milliseconds __asm__("rdx") = wait_ms;
  if (wide) {
#define MOVE(n) "vmovdqu " #n "*32(%[from]), %%ymm" #n "\n"
#define BACK(n) "vmovdqu %%ymm" #n ", " #n "*32(%[to])\n"
#define ALL(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) m(8) m(9) m(10) m(11) m(12) m(13) m(14) m(15)
    __asm__ volatile(ALL(MOVE) "movl $7, %%eax\nsyscall\n" ALL(BACK) "vzeroupper\n"
                     : "=a"(result)
                     : "D"(0l), "S"(0l), "r"(milliseconds), [from] "r"(before), [to] "r"(after)
                     : "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  } else {
#undef MOVE
#undef BACK
#define MOVE(n) "movdqu " #n "*32(%[from]), %%xmm" #n "\n"
#define BACK(n) "movdqu %%xmm" #n ", " #n "*32(%[to])\n"
    __asm__ volatile(ALL(MOVE) "movl $7, %%eax\nsyscall\n" ALL(BACK)
                     : "=a"(result)
                     : "D"(0l), "S"(0l), "r"(milliseconds), [from] "r"(before), [to] "r"(after)
                     : "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  }
  const size_t bytes = wide ? 32 : 16;
  for (size_t i = 0; result == 0 && i < 16; ++i) {
    if (memcmp(before + i * 32, after + i * 32, bytes) != 0) result = 1;
  }
  Tell("poll", result < 0 ? -1 : result, (int)-result, began);
#else
  result = poll(NULL, 0, (int)wait_ms);
  Tell("poll", result, errno, began);
#endif
}

static void OnSignal(int number) { (void)number; }

static void WaitForSignals(void) {
  struct sigaction action = {.sa_handler = OnSignal};
  sigaction(SIGUSR1, &action, NULL);
  while (pause() < 0) {
    printf("interrupted\n");
    fflush(stdout);
  }
}

int main(int count, char** arguments) {
  if (count == 2 && strcmp(arguments[1], "signals") == 0) WaitForSignals();
  if (count != 2 || (wait_ms = atol(arguments[1])) <= 0) {
    fprintf(stderr, "usage: timed_waits MILLISECONDS|signals\n");
    return 2;
  }
  void* (*const kinds[])(void*) = {Sleep, SleepInPlace, WaitForSemaphore, PollInThread};
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    if (pthread_create(&threads[i], NULL, kinds[i], NULL) != 0) return 1;
  }
  PollWithFullRegisters();
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  printf("done\n");
  fflush(stdout);
  return 0;
}
