#include "base/positioned_io.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle {

namespace {

constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

// What is left of `out`: the file ends before.
absl::StatusOr<absl::Span<std::byte>> ReadUntilEnd(int fd, uint64_t offset, absl::Span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading it");
    if (n == 0) break;
    offset += static_cast<uint64_t>(n);
    out.remove_prefix(static_cast<size_t>(n));
  }
  return out;
}

}  // namespace

absl::Status ReadAtOrZero(int fd, uint64_t offset, absl::Span<std::byte> out) {
  RK_ASSIGN_OR_RETURN(const absl::Span<std::byte> left, ReadUntilEnd(fd, offset, out));
  if (!left.empty()) std::memset(left.data(), 0, left.size());
  return absl::OkStatus();
}

absl::Status ReadAt(int fd, uint64_t offset, absl::Span<std::byte> out) {
  RK_ASSIGN_OR_RETURN(const absl::Span<std::byte> left, ReadUntilEnd(fd, offset, out));
  if (left.empty()) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("the file ends at ", offset + out.size() - left.size(), " bytes"));
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

absl::StatusOr<uint64_t> CopyPart(int from, uint64_t begin, uint64_t end, int to, absl::string_view to_what) {
  std::string buffer(begin < end ? std::min(kCopyBytes, end - begin) : 0, '\0');
  while (begin < end) {
    const size_t wanted = std::min<uint64_t>(buffer.size(), end - begin);
    const ssize_t n = ::pread(from, buffer.data(), wanted, static_cast<off_t>(begin));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading it");
    if (n == 0) break;
    RK_RETURN_IF_ERROR(WriteFully(to, buffer.data(), static_cast<size_t>(n), to_what));
    begin += static_cast<uint64_t>(n);
  }
  return begin;
}

}  // namespace rekindle
