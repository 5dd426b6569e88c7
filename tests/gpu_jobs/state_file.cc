#include "tests/gpu_jobs/state_file.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace rekindle::gpu_jobs {

void WriteFile(const std::string& path, const void* bytes, size_t count) {
  const std::string next = path + ".next";
  FILE* file = std::fopen(next.c_str(), "w");
  if (file == nullptr) Die("cannot write %s", next.c_str());
  const bool written = std::fwrite(bytes, 1, count, file) == count;
  if (std::fclose(file) != 0 || !written || std::rename(next.c_str(), path.c_str()) != 0) {
    Die("cannot write %s", path.c_str());
  }
}

void WriteState(const std::string& path, uint64_t step, uint64_t digest, const char* more) {
  char line[64];
  const int length =
      std::snprintf(line, sizeof(line), "%llu %016llx%s\n", static_cast<unsigned long long>(step),
                    static_cast<unsigned long long>(digest), more);
  WriteFile(path, line, static_cast<size_t>(length));
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
