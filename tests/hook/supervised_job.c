/* A program with the hook that does what lines of its standard input say, and answers each with a line:
 * "progress STEP TOTAL", "burst CALLS", "child STEP TOTAL" (from a child of it),
 * "closed CALLS" (without a standard output, to which another thread writes meanwhile), "here", "now",
 * "caches" (from now on drop them before an image), "drops" (how often it has). */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hook/rekindle_hook.h"

static const char* Name(enum rekindle_event event) {
  switch (event) {
    case REKINDLE_NOT_HELD:
      return "not held";
    case REKINDLE_CONTINUED:
      return "continued";
    case REKINDLE_RESTORED:
      return "restored";
    default:
      return "another event";
  }
}

/* Calls of write() and its like, so far. */
static unsigned long Writes(void) {
  unsigned long writes = 0;
  FILE* file = fopen("/proc/self/io", "re");
  char line[128];
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) sscanf(line, "syscw: %lu", &writes);
  if (file != NULL) fclose(file);
  return writes;
}

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static atomic_bool enough;

static void* WriteOn(void* unused) {
  (void)unused;
  while (!atomic_load(&enough)) {
    if (write(STDOUT_FILENO, "loss 0.123\n", 11) > 0) break; /* into a file of ours */
  }
  return NULL;
}

/* The last of `calls` steps is also their number: each is written. */
static void WithoutOutput(uint64_t calls) {
  pthread_t writer;
  const int output = dup(STDOUT_FILENO);
  close(STDOUT_FILENO);
  atomic_store(&enough, false);
  const int failed = pthread_create(&writer, NULL, WriteOn, NULL);
  for (uint64_t step = 1; step <= calls; ++step) rekindle_progress(step, step);
  atomic_store(&enough, true);
  if (failed == 0) pthread_join(writer, NULL);
  dup2(output, STDOUT_FILENO);
  close(output);
}

int main(void) {
  char line[256];
  uint64_t step, total;
  int has_caches = 0, drops = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  while (fgets(line, sizeof(line), stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "progress %" SCNu64 " %" SCNu64, &step, &total) == 2) {
      rekindle_progress(step, total);
      puts("said");
    } else if (sscanf(line, "burst %" SCNu64, &total) == 1) {
      const unsigned long writes = Writes();
      const double begin = Seconds();
      for (step = 1; step <= total; ++step) rekindle_progress(step, 0);
      const double seconds = Seconds() - begin;
      printf("%lu %.6f\n", Writes() - writes, seconds);
    } else if (sscanf(line, "child %" SCNu64 " %" SCNu64, &step, &total) == 2) {
      const pid_t child = fork();
      if (child == 0) {
        rekindle_progress(step, total);
        _exit(0);
      }
      int status = -1;
      waitpid(child, &status, 0);
      puts(status == 0 ? "said" : "the child failed");
    } else if (sscanf(line, "closed %" SCNu64, &total) == 1) {
      WithoutOutput(total);
      puts("said");
    } else if (strcmp(line, "caches") == 0) {
      has_caches = 1;
      puts("said");
    } else if (strcmp(line, "drops") == 0) {
      printf("%d\n", drops);
    } else if (strcmp(line, "here") == 0) {
      drops += has_caches && rekindle_checkpoint_due();
      puts(Name(rekindle_checkpoint_here()));
    } else if (strcmp(line, "now") == 0) {
      drops += has_caches;
      puts(Name(rekindle_checkpoint_now()));
    } else {
      puts("what?");
    }
  }
  return 0;
}
