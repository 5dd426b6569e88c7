// What each of our programs does first.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace rekindle {

// Where standard input, output or error was closed, the next file or connection would have its number, and
// get what is written for a reader. Reading and writing there fail, as without. Ahead of constructors that
// open something.
__attribute__((constructor(101))) inline void OccupyStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int opened = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// To be called first in main.
inline void BeginProgram() {
  // A file that would exceed the limit (ulimit -f) is an error of whoever writes it, as a full disk is.
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace rekindle
