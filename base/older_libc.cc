// For programs that run on a machine's own libc, which may be older than the one that they were built with
// (2.35 is the oldest: Ubuntu 22.04; make-bundle.sh checks). Linked into such a program, this stands in for
// what libstdc++'s std::random_device would otherwise want of a newer libc.
#include <sys/random.h>
#include <unistd.h>

extern "C" unsigned arc4random() noexcept {
  unsigned number = 0;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
  }
  return number;
}
