/* A process with a given amount of memory that can't be compressed. It ticks a clock all the time and keeps
 * the largest gap between two ticks, so that a freeze is measured from inside the job.
 *
 *   memory_job BYTES STATUS_FILE
 *
 * STATUS_FILE is made by the job; memory_job.h says what is in it. Requests are answered between two ticks.
 */
#include "memory_job.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kWordsPerPage = kPage / 8, kTickNs = 100 * 1000 };

static uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void Store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static uint64_t NowNs(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* SplitMix64: every word differs, so neither compression nor deduplication finds anything. */
static uint64_t Noise(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static void FillPage(uint64_t* page, uint64_t index, uint64_t round) {
  const uint64_t base = (round << 44) + index * kWordsPerPage;
  for (int i = 0; i < kWordsPerPage; ++i) page[i] = Noise(base + (uint64_t)i);
}

static uint64_t Digest(const uint64_t* memory, uint64_t bytes) {
  uint64_t digest = bytes;
  for (uint64_t i = 0; i < bytes / 8; ++i) {
    digest = (digest ^ memory[i]) * 0x9fb21c651e98df25u;
    digest ^= digest >> 32;
  }
  return digest;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: memory_job BYTES STATUS_FILE\n");
    return 2;
  }
  const uint64_t bytes = strtoull(argv[1], NULL, 10) / kPage * kPage;
  const int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, kPage) != 0) {
    perror(argv[2]);
    return 1;
  }
  struct MemoryJobStatus* status = mmap(NULL, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  uint64_t* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (status == MAP_FAILED || memory == MAP_FAILED) {
    perror("mmap");
    return 1;
  }
  close(fd);
  const uint64_t seed = NowNs() & 0xfffff; /* no two jobs have a page in common */
  const uint64_t pages = bytes / kPage;
  for (uint64_t i = 0; i < pages; ++i) FillPage(memory + i * kWordsPerPage, i, seed);

  uint64_t round = seed;
  uint64_t last = NowNs();
  Store(&status->bytes, bytes);
  Store(&status->last_tick_ns, last);
  Store(&status->ready, 1);
  for (;;) {
    if (Load(&status->touch_request) != Load(&status->touches)) {
      const uint64_t count = Load(&status->touch_pages);
      ++round;
      for (uint64_t k = 0; k < count && k < pages; ++k) {
        const uint64_t page = k * pages / count;
        FillPage(memory + page * kWordsPerPage, page, round);
      }
      Store(&status->rounds_of_noise, round - seed);
      Store(&status->touches, Load(&status->touch_request));
      last = NowNs();
    }
    if (Load(&status->digest_request) != Load(&status->digests)) {
      Store(&status->digest, Digest(memory, bytes));
      Store(&status->digests, Load(&status->digest_request));
      last = NowNs();
    }
    if (Load(&status->gap_reset_request) != Load(&status->gap_resets)) {
      Store(&status->largest_gap_ns, 0);
      Store(&status->gap_resets, Load(&status->gap_reset_request));
      last = NowNs();
    }
    const struct timespec tick = {0, kTickNs};
    nanosleep(&tick, NULL);
    const uint64_t now = NowNs();
    if (now - last > status->largest_gap_ns) Store(&status->largest_gap_ns, now - last);
    last = now;
    Store(&status->last_tick_ns, now);
    Store(&status->ticks, status->ticks + 1);
  }
}
