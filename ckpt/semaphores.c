// Part of rekindle-criu-preload.so: an image tells which eventfds are semaphores (criu/semaphore_mark.h).
//
// CRIU takes the flags of a descriptor from its text in /proc, in which the kernel tells of a semaphore as
// well (older ones do not). So CRIU reads the mark among the flags there, which costs no system call.
//
// Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu/semaphore_mark.h"

// Octal digits of flags that the kernel may print.
#define MOST_DIGITS 12

// Behind `prefix`, if `text` begins with that; a null pointer if it does not.
static char* Behind(char* text, const char* end, const char* prefix) {
  for (; *prefix != 0; ++prefix, ++text) {
    if (text == end || *text != *prefix) return NULL;
  }
  return text;
}

static char* NextLine(char* text, const char* end) {
  while (text < end && *text != '\n') ++text;
  return text < end ? text + 1 : text;
}

// The text of an eventfd: "pos:\t0\nflags:\t04002\n…\neventfd-count: …\n…\neventfd-semaphore: 1\n". What is
// in `text` after that, of which `room` bytes may be used.
static size_t Mark(char* text, size_t length, size_t room) {
  char* end = text + length;
  if (Behind(text, end, "pos:\t") == NULL) return length;
  char* flags = Behind(NextLine(text, end), end, "flags:\t");
  if (flags == NULL) return length;
  int is_eventfd = 0, is_semaphore = 0;
  // The lines of an eventfd that come before are few.
  char* line = flags;
  for (int i = 0; i < 8 && line < end; ++i) {
    line = NextLine(line, end);
    if (Behind(line, end, "eventfd-count:") != NULL) is_eventfd = 1;
    if (Behind(line, end, "eventfd-semaphore: 1") != NULL) is_semaphore = 1;
  }
  if (!is_eventfd) return length;

  uint64_t value = 0;
  char* behind = flags;
  for (; behind < end && *behind >= '0' && *behind <= '7'; ++behind)
    value = value * 8 + (uint64_t)(*behind - '0');
  value = is_semaphore ? value | SEMAPHORE_MARK : value & ~(uint64_t)SEMAPHORE_MARK;
  char digits[MOST_DIGITS];
  size_t count = 0;
  for (; value != 0 && count + 1 < sizeof digits; value /= 8) digits[count++] = (char)('0' + value % 8);
  digits[count++] = '0';
  const size_t had = (size_t)(behind - flags), tail = (size_t)(end - behind);
  const size_t longer = length - had + count;
  if (value != 0 || longer > room) return length;
  if (count > had) {
    for (size_t i = tail; i > 0; --i) flags[count + i - 1] = behind[i - 1];
  } else {
    for (size_t i = 0; i < tail; ++i) flags[count + i] = behind[i];
  }
  for (size_t i = 0; i < count; ++i) flags[i] = digits[count - 1 - i];
  return longer;
}

ssize_t read(int fd, void* to, size_t bytes) {
  const long n = syscall(SYS_read, fd, to, bytes);
  return n <= 0 ? n : (ssize_t)Mark(to, (size_t)n, bytes);
}
