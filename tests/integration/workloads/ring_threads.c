// A job with threads of the kernel's io_uring whose ring is in none of its descriptors or mappings: it counts
// into a file, "1\n2\n...", ten times a second. The way of its ring is its first argument:
//   lone-sqpoll  registered alone, with a thread that looks for work all the time
//   lone-worker  registered alone, with a worker that waits for an empty pipe
//   closed       used and closed, whose worker stays
// Exits with 77 where io_uring can't be had. The second argument is the file.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kNotToBeHad = 77, kEntries = 4, kBytes = 1 << 16 };
#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1U << 14)
#endif
#ifndef IORING_SETUP_REGISTERED_FD_ONLY
#define IORING_SETUP_REGISTERED_FD_ONLY (1U << 15)
#endif
#ifndef IORING_ENTER_REGISTERED_RING
#define IORING_ENTER_REGISTERED_RING (1U << 4)
#endif

static void* Memory(void) {
  return mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

// A read of `from` that a worker does.
static int ReadAsync(int ring, unsigned enter_flags, char* rings, struct io_uring_sqe* entries,
                     const struct io_uring_params* parameters, int from, unsigned await) {
  static char byte;
  memset(entries, 0, sizeof *entries);
  entries->opcode = IORING_OP_READ;
  entries->fd = from;
  entries->addr = (uintptr_t)&byte;
  entries->len = 1;
  entries->flags = IOSQE_ASYNC;
  unsigned* array = (unsigned*)(void*)(rings + parameters->sq_off.array);
  unsigned* tail = (unsigned*)(void*)(rings + parameters->sq_off.tail);
  array[0] = 0;
  __atomic_store_n(tail, 1, __ATOMIC_RELEASE);
  return (int)syscall(SYS_io_uring_enter, ring, 1, await, IORING_ENTER_GETEVENTS | enter_flags, NULL, 0);
}

// `user_addr`, which is last in both and has no name in older headers.
static void PutAddress(void* offsets, size_t bytes, const void* memory) {
  const uint64_t address = (uintptr_t)memory;
  memcpy((char*)offsets + bytes - sizeof address, &address, sizeof address);
}

static int MakeLone(unsigned flags, char** rings, struct io_uring_sqe** entries,
                    struct io_uring_params* parameters) {
  *rings = (char*)Memory();
  *entries = (struct io_uring_sqe*)Memory();
  parameters->flags = flags | IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY;
  PutAddress(&parameters->cq_off, sizeof parameters->cq_off, *rings);
  PutAddress(&parameters->sq_off, sizeof parameters->sq_off, *entries);
  return (int)syscall(SYS_io_uring_setup, kEntries, parameters);
}

static int Make(const char* way) {
  char* rings;
  struct io_uring_sqe* entries;
  struct io_uring_params parameters = {0};
  if (strcmp(way, "lone-sqpoll") == 0) {
    return MakeLone(IORING_SETUP_SQPOLL, &rings, &entries, &parameters) < 0 ? kNotToBeHad : 0;
  }
  if (strcmp(way, "lone-worker") == 0) {
    int ends[2];
    const int ring = MakeLone(0, &rings, &entries, &parameters);
    if (ring < 0) return kNotToBeHad;
    if (pipe(ends) != 0) return 1;
    return ReadAsync(ring, IORING_ENTER_REGISTERED_RING, rings, entries, &parameters, ends[0], 0) == 1 ? 0
                                                                                                       : 1;
  }
  if (strcmp(way, "closed") != 0) return 2;
  const int ring = (int)syscall(SYS_io_uring_setup, kEntries, &parameters);
  if (ring < 0) return kNotToBeHad;
  rings = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
  entries = mmap(NULL, kEntries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                 IORING_OFF_SQES);
  const int from = open("/dev/zero", O_RDONLY);
  if (rings == MAP_FAILED || entries == MAP_FAILED || from < 0) return 1;
  if (ReadAsync(ring, 0, rings, entries, &parameters, from, 1) != 1) return 1;
  return munmap(rings, kBytes) == 0 && munmap(entries, kEntries * sizeof *entries) == 0 && close(from) == 0 &&
                 close(ring) == 0
             ? 0
             : 1;
}

int main(int count, char** words) {
  if (count != 3) return 2;
  const int made = Make(words[1]);
  if (made != 0) return made;
  const int file = open(words[2], O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return 1;
  for (int i = 1;; ++i) {
    if (dprintf(file, "%d\n", i) < 0) return 1;
    const struct timespec pause = {0, 100 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
}
