/* A process that writes all of its memory, and knows what each copy of it must find there.
 *
 *   memory_writer DIRECTORY MEGABYTES anonymous|file
 *
 * It fills its memory (with `file` a private mapping of DIRECTORY/mapped, so that all of it is changed copies
 * of a file's pages), makes DIRECTORY/ready and waits for DIRECTORY/go.HOST, HOST being the name of the host
 * that it is on: so copies can be told apart. Then it checks each page and writes its own in place, makes
 * DIRECTORY/written.HOST, waits for DIRECTORY/check, checks all again and writes DIRECTORY/result.HOST: "ok
 * DIGEST", or what was wrong.
 *
 * Where DIRECTORY/greedy.HOST is, it takes more and more memory instead once it has written its own.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kWordsPerPage = kPage / 8, kMegabyte = 1 << 20, kGreed = 1024 };

static const char* directory;

/* SplitMix64: every word differs, so neither compression nor deduplication finds anything. */
static uint64_t Noise(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static uint64_t SeedOf(const char* text) {
  uint64_t seed = 0;
  for (; *text != '\0'; ++text) seed = Noise(seed ^ (uint64_t)(unsigned char)*text);
  return seed;
}

static int Open(const char* name, const char* host, int flags) {
  char path[1024];
  snprintf(path, sizeof(path), "%s/%s%s%s", directory, name, host == NULL ? "" : ".",
           host == NULL ? "" : host);
  return open(path, flags | O_CLOEXEC, 0644);
}

static void Tell(const char* name, const char* host, const char* text) {
  const int file = Open(name, host, O_WRONLY | O_CREAT | O_TRUNC);
  if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text)) _exit(4);
  close(file);
}

static int IsThere(const char* name, const char* host) {
  const int file = Open(name, host, O_RDONLY);
  if (file >= 0) close(file);
  return file >= 0;
}

static void WaitFor(const char* name, struct utsname* machine) {
  const struct timespec pause = {0, 2 * 1000 * 1000};
  for (;;) {
    if (machine != NULL) uname(machine);
    if (IsThere(name, machine == NULL ? NULL : machine->nodename)) return;
    nanosleep(&pause, NULL);
  }
}

static void Fill(uint64_t* page, uint64_t seed, uint64_t index) {
  for (int i = 0; i < kWordsPerPage; ++i) page[i] = Noise(seed + index * kWordsPerPage + (uint64_t)i);
}

static void Check(const char* host, const uint64_t* page, uint64_t seed, uint64_t index, const char* when) {
  for (int i = 0; i < kWordsPerPage; ++i) {
    if (page[i] == Noise(seed + index * kWordsPerPage + (uint64_t)i)) continue;
    char text[256];
    snprintf(text, sizeof(text), "wrong: %s page %llu has %llx at word %d\n", when, (unsigned long long)index,
             (unsigned long long)page[i], i);
    Tell("result", host, text);
    _exit(3);
  }
}

static void TakeMore(const char* host) {
  for (int i = 0; i < kGreed; ++i) {
    char* more = mmap(NULL, kMegabyte, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) break;
    memset(more, i + 1, kMegabyte);
  }
  Tell("result", host, "wrong: nothing stopped it\n");
  _exit(3);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: memory_writer DIRECTORY MEGABYTES anonymous|file\n");
    return 2;
  }
  directory = argv[1];
  const uint64_t bytes = strtoull(argv[2], NULL, 10) * kMegabyte, pages = bytes / kPage;
  int file = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (strcmp(argv[3], "file") == 0) {
    flags = MAP_PRIVATE;
    file = Open("mapped", NULL, O_RDWR | O_CREAT | O_TRUNC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
      perror("mapped");
      return 1;
    }
  }
  uint64_t* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (memory == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  if (file >= 0) close(file);
  for (uint64_t i = 0; i < pages; ++i) Fill(memory + i * kWordsPerPage, 0, i);
  Tell("ready", NULL, "");

  struct utsname machine;
  WaitFor("go", &machine);
  const char* host = machine.nodename;
  const uint64_t seed = SeedOf(host);
  for (uint64_t i = 0; i < pages; ++i) {
    Check(host, memory + i * kWordsPerPage, 0, i, "restored");
    Fill(memory + i * kWordsPerPage, seed, i);
  }
  Tell("written", host, "");
  if (IsThere("greedy", host)) TakeMore(host);
  WaitFor("check", NULL);
  uint64_t digest = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    Check(host, memory + i * kWordsPerPage, seed, i, "written");
    for (int word = 0; word < kWordsPerPage; ++word)
      digest = Noise(digest ^ memory[i * kWordsPerPage + (uint64_t)word]);
  }
  char text[64];
  snprintf(text, sizeof(text), "ok %016llx\n", (unsigned long long)digest);
  Tell("result", host, text);
  return 0;
}
