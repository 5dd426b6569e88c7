#include "base/positioned_io.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace rekindle {

absl::Status ReadAtOrZero(int fd, uint64_t offset, absl::Span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading it");
    if (n == 0) break;
    offset += static_cast<uint64_t>(n);
    out.remove_prefix(static_cast<size_t>(n));
  }
  if (!out.empty()) std::memset(out.data(), 0, out.size());
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, uint64_t offset, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "writing it");
    offset += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace rekindle
