/* A program with the hook, for tests. It reads 4 bytes of the file that its argument names, gets ready, tells
 * what happened on standard output when it was not restored, and else answers on its channel until it is told
 * to exit. */
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "hook/rekindle_hook.h"

enum { kMemoryWords = 1 << 17 };

static char order[16];
static uint64_t* memory;
static int count;
static int prepared, came_up_as_parent, came_up_as_child;

static void Note(void* letter) { strncat(order, letter, 1); }
static void Seed(void* nothing) {
  (void)nothing;
  unsigned seed;
  if (getrandom(&seed, sizeof(seed), 0) == sizeof(seed)) srand(seed);
}
static void Prepare(void) { ++prepared; }
static void InParent(void) { ++came_up_as_parent; }
static void InChild(void) { ++came_up_as_child; }

static void* Sleep(void* nothing) {
  for (;;) pause();
  return nothing;
}

static uint64_t Digest(void) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kMemoryWords; ++i) sum = sum * 31 + memory[i];
  return sum;
}

/* libc reads the CPU from what the kernel writes into the thread's own memory, which a copy has to ask for
 * anew. */
static bool KnowsItsCpu(void) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof(all), &all) < 0) return false;
  bool right = true;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    right = right && sched_setaffinity(0, sizeof(one), &one) == 0 && sched_getcpu() == cpu;
  }
  return sched_setaffinity(0, sizeof(all), &all) == 0 && right;
}

static void Report(int file, int twin, const struct rekindle_restored* restored) {
  time_t now = time(NULL);
  struct tm local;
  localtime_r(&now, &local);
  char next[5] = "", host[65] = "", directory[256] = "", text[4096];
  if (read(file, next, 4) < 0) err(1, "read");
  gethostname(host, sizeof(host));
  if (getcwd(directory, sizeof(directory)) == NULL) err(1, "getcwd");
  const char* tag = getenv("TAG");
  snprintf(
      text, sizeof(text),
      "{\"type\":\"report\",\"instance\":\"%s\",\"name\":\"%s\",\"tag\":\"%s\",\"zone\":\"%s\",\"order\":\"%"
      "s\",\"pid\":%d,"
      "\"session\":%d,\"random\":\"%d\",\"next\":\"%s\",\"host\":\"%s\",\"directory\":\"%s\",\"count\":%d,"
      "\"digest\":\"%llx\",\"atfork\":\"%d %d %d\",\"knows_its_cpu\":%s,"
      "\"twin_follows\":%s}",
      restored->instance, restored->name, tag == NULL ? "" : tag, local.tm_zone, order, getpid(), getsid(0),
      rand(), next, host, directory, count, (unsigned long long)Digest(), prepared, came_up_as_parent,
      came_up_as_child, KnowsItsCpu() ? "true" : "false",
      lseek(file, 0, SEEK_CUR) == lseek(twin, 0, SEEK_CUR) ? "true" : "false");
  if (rekindle_send(text) < 0) errx(1, "%s", rekindle_error());
}

static void Spoil(void) {
  ++count;
  for (size_t i = 0; i < kMemoryWords; ++i) memory[i] = ~memory[i];
}

static void MakeUnsafe(const char* how, int file) {
  pthread_t thread;
  if (strcmp(how, "thread") == 0 && pthread_create(&thread, NULL, Sleep, NULL) == 0) return;
  if (strcmp(how, "lock") == 0 && flock(file, LOCK_SH) == 0) return;
  if (strcmp(how, "socket") == 0 && listen(socket(AF_INET, SOCK_STREAM, 0), 1) == 0) return;
  err(1, "UNSAFE=%s", how);
}

int main(int argc, char** argv) {
  int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
  char first[4];
  if (file < 0 || read(file, first, 4) != 4) err(2, "a file with 4 bytes was expected");
  int twin = dup(file);
  memory = malloc(kMemoryWords * sizeof(*memory));
  for (size_t i = 0; i < kMemoryWords; ++i) memory[i] = i * 0x9e3779b97f4a7c15u + 1;
  if (getenv("UNSAFE") != NULL) MakeUnsafe(getenv("UNSAFE"), file);
  rekindle_register_before_snapshot(Note, "A");
  rekindle_register_before_snapshot(Note, "B");
  rekindle_register_after_restore(Note, "C");
  rekindle_register_after_restore(Seed, NULL);
  rekindle_register_after_restore(Note, "D");
  pthread_atfork(Prepare, InParent, InChild);
  tzset();
  for (;;) {
    struct rekindle_restored restored;
    switch (rekindle_ready(&restored)) {
      case REKINDLE_NOT_HELD:
        printf("not held %s\n", order);
        return 0;
      case REKINDLE_CONTINUED:
        printf("continued %s\n", order);
        return fcntl(REKINDLE_CONTROL_FD, F_GETFD) < 0 && fcntl(REKINDLE_PEER_FD, F_GETFD) < 0 ? 0 : 3;
      case REKINDLE_RESTORED:
        break;
      default:
        printf("error %s\n", rekindle_error());
        return 4;
    }
    for (bool again = false; !again;) {
      char message[256];
      ssize_t length = recv(rekindle_channel(), message, sizeof(message) - 1, 0);
      if (length <= 0) return 0;
      message[length] = '\0';
      if (strstr(message, "report") != NULL) Report(file, twin, &restored);
      if (strstr(message, "print") != NULL) {
        dprintf(STDOUT_FILENO, "%s\n", restored.instance);
        rekindle_send("{}");
      }
      if (strstr(message, "spoil") != NULL) Spoil();
      again = strstr(message, "again") != NULL;
      if (strstr(message, "exit") != NULL) return 7;
    }
  }
}
