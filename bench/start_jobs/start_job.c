// The jobs of start_figures.py that are written in C.
//   start_job bare           (a) answers at once
//   start_job heap MIB       (e) touches 1 % of its heap's pages, checks them, and answers
//   start_job serve MIB      answers requests from its own child without end; prints the number of answers
//   and
//                            the seconds since it began, ten times a second
#include <err.h>
#include <hook/rekindle_hook.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kWords = kPage / 8 };

static uint64_t* heap;
static uint64_t pages;

static uint64_t Scramble(uint64_t value) {  // splitmix64
  value += UINT64_C(0x9e3779b97f4a7c15);
  value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

// Half of each page is noise and half repeats itself: it shrinks about as well as a heap does.
static void MakeHeap(uint64_t mib) {
  pages = (mib << 20) / kPage;
  heap = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (heap == MAP_FAILED) err(1, "mmap of %" PRIu64 " MiB", mib);
  for (uint64_t page = 0; page < pages; ++page) {
    uint64_t* words = heap + page * kWords;
    for (unsigned i = 0; i < kWords; ++i) words[i] = i % 2 == 0 ? Scramble(page * kWords + i) : page;
  }
}

static void TouchHeap(void* unused) {
  (void)unused;
  for (uint64_t i = 0; i < pages / 100; ++i) {
    const uint64_t page = Scramble(i) % pages;
    uint64_t* word = heap + page * kWords + 2;
    if (*word != Scramble(page * kWords + 2)) errx(1, "page %" PRIu64 " is wrong", page);
    *word = Scramble(page * kWords + 2);
  }
}

static void AnswerCold(void) {
  const char* fd = getenv("ANSWER_FD");
  if (fd == NULL) errx(1, "neither held nor given ANSWER_FD");
  const char up[] = "{\"type\":\"up\"}";
  if (write(atoi(fd), up, sizeof up - 1) < 0) err(1, "answering");
}

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Both processes on one processor: an idle one of a virtual machine takes longer to wake up than an answer
// takes, so that others' work, which keeps it awake, would seem to help.
static void StayOnThisProcessor(void) {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  if (sched_setaffinity(0, sizeof here, &here) != 0) err(1, "sched_setaffinity");
}

static void Serve(void) {
  StayOnThisProcessor();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) err(1, "socketpair");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) err(1, "fork");
  uint64_t packet = 0;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    close(ends[0]);
    // A request reads 64 KiB somewhere in the heap, as a look-up in a large table does.
    while (read(ends[1], &packet, sizeof packet) == sizeof packet) {
      const uint64_t first = Scramble(packet) % (pages - 16);
      uint64_t sum = 0;
      for (uint64_t i = 0; i < 16 * kWords; ++i) sum += heap[first * kWords + i];
      packet = sum;
      if (write(ends[1], &packet, sizeof packet) < 0) break;
    }
    _exit(0);
  }
  close(ends[1]);
  const double began = Now();
  double next = 0.1;
  for (uint64_t answers = 0;; ++answers) {
    packet = answers;
    if (write(ends[0], &packet, sizeof packet) < 0 || read(ends[0], &packet, sizeof packet) <= 0) {
      errx(1, "the server is gone");
    }
    const double at = Now() - began;
    if (at >= next) {
      printf("%" PRIu64 " %.6f\n", answers + 1, at);
      if (fflush(stdout) != 0) exit(0);
      next = at + 0.1;
    }
  }
}

int main(int argc, char** argv) {
  const char* kind = argc > 1 ? argv[1] : "";
  if (argc == 3 && strcmp(kind, "serve") == 0) {
    MakeHeap(strtoull(argv[2], NULL, 10));
    Serve();
  }
  if (argc == 3 && strcmp(kind, "heap") == 0) {
    MakeHeap(strtoull(argv[2], NULL, 10));
    if (rekindle_register_after_restore(TouchHeap, NULL) != 0) err(1, "rekindle_register_after_restore");
  } else if (argc != 2 || strcmp(kind, "bare") != 0) {
    errx(2, "usage: start_job bare | heap MIB | serve MIB");
  }
  switch (rekindle_ready(NULL)) {
    case REKINDLE_ERROR:
      errx(1, "%s", rekindle_error());
    case REKINDLE_NOT_HELD:
      TouchHeap(NULL);
      AnswerCold();
      break;
    default:
      break;
  }
  for (;;) pause();
}
