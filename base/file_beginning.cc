#include "base/file_beginning.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"
#include "base/status.h"

namespace rekindle {
namespace {

constexpr uint64_t kSampleBytes = 64u << 10, kEndingBytes = 4u << 10;
constexpr uint64_t kMiddlePageBytes = 4u << 10, kMiddlePages = 16;

absl::Status ReadAt(int fd, uint64_t offset, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading a file's beginning");
    if (n == 0) return absl::OutOfRangeError(absl::StrCat("the file ends at ", offset, " bytes"));
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> FileBeginning(int fd, uint64_t bytes) {
  const uint64_t head = std::min(bytes, kSampleBytes), tail = std::min(bytes - head, kSampleBytes);
  std::string sample(head + tail, '\0');
  RK_RETURN_IF_ERROR(ReadAt(fd, 0, sample.data(), head));
  RK_RETURN_IF_ERROR(ReadAt(fd, bytes - tail, sample.data() + head, tail));
  return std::max<uint64_t>(StableHash(sample), 1);
}

absl::StatusOr<uint64_t> FileMiddle(int fd, uint64_t bytes) {
  const uint64_t between = BeginningIsAll(bytes) ? 0 : bytes - 2 * kSampleBytes;
  const uint64_t pages = std::min(kMiddlePages, between / kMiddlePageBytes);
  std::string sample(pages * kMiddlePageBytes, '\0');
  for (uint64_t i = 0; i < pages; ++i) {
    const uint64_t offset = kSampleBytes + between / pages * i;
    RK_RETURN_IF_ERROR(
        ReadAt(fd, offset, sample.data() + i * kMiddlePageBytes, static_cast<size_t>(kMiddlePageBytes)));
  }
  return std::max<uint64_t>(StableHash(sample), 1);
}

bool BeginningIsAll(uint64_t bytes) { return bytes <= 2 * kSampleBytes; }

absl::StatusOr<uint64_t> FileEnding(int fd, uint64_t bytes) {
  std::string sample(std::min(bytes, kEndingBytes), '\0');
  RK_RETURN_IF_ERROR(ReadAt(fd, bytes - sample.size(), sample.data(), sample.size()));
  return std::max<uint64_t>(StableHash(sample), 1);
}

}  // namespace rekindle
