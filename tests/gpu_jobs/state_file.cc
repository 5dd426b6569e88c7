#include "tests/gpu_jobs/state_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace rekindle::gpu_jobs {

namespace {

// Enough for a line, and the same for all: in place, one page, so that a reader's one read sees one of them
// whole.
constexpr size_t kLineBytes = 64;

}  // namespace

void WriteFile(const std::string& path, const void* bytes, size_t count) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  const bool written = file >= 0 && pwrite(file, bytes, count, 0) == static_cast<ssize_t>(count);
  if (!written || close(file) != 0) Die("cannot write %s", path.c_str());
}

void WriteState(const std::string& path, uint64_t step, uint64_t digest, const char* more) {
  char line[kLineBytes + 1];
  const int length =
      std::snprintf(line, sizeof(line), "%-20llu %016llx%s", static_cast<unsigned long long>(step),
                    static_cast<unsigned long long>(digest), more);
  if (length < 0 || static_cast<size_t>(length) >= kLineBytes) Die("a line too long for %s", path.c_str());
  std::memset(line + length, ' ', kLineBytes - static_cast<size_t>(length));
  line[kLineBytes - 1] = '\n';
  WriteFile(path, line, kLineBytes);
}

bool ReadState(const std::string& path, uint64_t* step, uint64_t* digest) {
  FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  unsigned long long number = 0, sum = 0;
  const bool read = std::fscanf(file, "%llu %llx", &number, &sum) == 2;
  std::fclose(file);
  *step = number;
  *digest = sum;
  return read;
}

void Pause(uint64_t milliseconds) {
  timespec time{static_cast<time_t>(milliseconds / 1000), static_cast<long>(milliseconds % 1000) * 1'000'000};
  while (nanosleep(&time, &time) != 0) {
  }
}

void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::exit(1);
}

}  // namespace rekindle::gpu_jobs
