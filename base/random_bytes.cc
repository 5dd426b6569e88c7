#include "base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace rekindle {

void FillWithRandomBytes(void* out, size_t size) {
  char* at = static_cast<char*>(out);
  while (size > 0) {
    const ssize_t n = ::getrandom(at, size, 0);
    if (n < 0 && errno != EINTR) abort();
    if (n <= 0) continue;
    at += n;
    size -= static_cast<size_t>(n);
  }
}

}  // namespace rekindle
