#include "hook/open_apart.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int rekindle_open_apart(const char* path, int flags) {
  int held[STDERR_FILENO + 1], count = 0;
  for (int number = 0; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    /* Nothing can be written to such a one. */
    const int place = open("/", O_PATH | O_CLOEXEC);
    if (place > STDERR_FILENO) close(place);
    if (place >= 0 && place <= STDERR_FILENO) held[count++] = place;
  }
  const int fd = open(path, flags | O_CLOEXEC);
  const int error = errno;
  while (count > 0) close(held[--count]);
  errno = error;
  return fd;
}
