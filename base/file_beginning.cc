#include "base/file_beginning.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/positioned_io.h"
#include "base/stable_hash.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr uint64_t kSampleBytes = 64u << 10, kEndingBytes = 4u << 10;
constexpr uint64_t kMiddlePageBytes = 4u << 10, kMiddlePages = 16;

absl::Status ReadInto(std::string& sample, size_t at, size_t bytes, int fd, uint64_t offset) {
  return Annotate(ReadAt(fd, offset, {reinterpret_cast<std::byte*>(sample.data()) + at, bytes}),
                  "reading a part of a file");
}

}  // namespace

absl::StatusOr<uint64_t> FileBeginning(int fd, uint64_t bytes) {
  const uint64_t head = std::min(bytes, kSampleBytes), tail = std::min(bytes - head, kSampleBytes);
  std::string sample(head + tail, '\0');
  RK_RETURN_IF_ERROR(ReadInto(sample, 0, head, fd, 0));
  RK_RETURN_IF_ERROR(ReadInto(sample, head, tail, fd, bytes - tail));
  return std::max<uint64_t>(StableHash(sample), 1);
}

absl::StatusOr<uint64_t> FileMiddle(int fd, uint64_t bytes) {
  const uint64_t between = BeginningIsAll(bytes) ? 0 : bytes - 2 * kSampleBytes;
  const uint64_t pages = std::min(kMiddlePages, between / kMiddlePageBytes);
  std::string sample(pages * kMiddlePageBytes, '\0');
  for (uint64_t i = 0; i < pages; ++i) {
    const uint64_t offset = kSampleBytes + between / pages * i;
    RK_RETURN_IF_ERROR(ReadInto(sample, i * kMiddlePageBytes, kMiddlePageBytes, fd, offset));
  }
  return std::max<uint64_t>(StableHash(sample), 1);
}

bool BeginningIsAll(uint64_t bytes) { return bytes <= 2 * kSampleBytes; }

absl::StatusOr<uint64_t> FileEnding(int fd, uint64_t bytes) {
  std::string sample(std::min(bytes, kEndingBytes), '\0');
  RK_RETURN_IF_ERROR(ReadInto(sample, 0, sample.size(), fd, bytes - sample.size()));
  return std::max<uint64_t>(StableHash(sample), 1);
}

}  // namespace rekindle
