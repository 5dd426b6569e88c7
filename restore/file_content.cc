#include "restore/file_content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

constexpr size_t kChunkBytes = 64 * kPageSize;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageSize - 1) / kPageSize * kPageSize; }

// What lies behind the file's end is zero.
absl::Status ReadOrZero(int fd, uint64_t offset, absl::Span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading it");
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  std::memset(out.data() + done, 0, out.size() - done);
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

bool IsZero(absl::Span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Puts one page, or less at the end of the file, where something else is now.
absl::Status ReplacePage(int fd, uint64_t offset, absl::Span<const std::byte> page) {
  if (page.size() == kPageSize && IsZero(page) &&
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(kPageSize)) == 0) {
    return absl::OkStatus();
  }
  return WriteAt(fd, offset, page);
}

absl::StatusOr<uint64_t> SizeOf(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "looking at it");
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

absl::StatusOr<FileContent> FileContent::Open(const store::ImageReader& image, const v1::WrittenFile& file) {
  FileContent content(image);
  content.size_ = file.size();
  content.object_ = file.content_object();
  if (file.size() == 0) return content;
  if (content.object_.empty()) {
    return absl::NotFoundError(
        absl::StrCat("image ", image.info().reference, " does not have the content of ", file.path()));
  }
  RK_ASSIGN_OR_RETURN(content.runs_, image.Runs(content.object_));
  std::erase_if(content.runs_, [](const store::PageRun& run) { return run.zero; });
  for (const store::PageRun& run : content.runs_) content.data_bytes_ += run.pages * kPageSize;
  return content;
}

std::vector<store::PageRun>::const_iterator FileContent::FirstRunBehind(uint64_t offset) const {
  return std::upper_bound(runs_.begin(), runs_.end(), offset, [](uint64_t at, const store::PageRun& run) {
    return at < run.address + run.pages * kPageSize;
  });
}

absl::Status FileContent::Read(uint64_t offset, absl::Span<std::byte> out) const {
  std::byte pages[kChunkBytes] = {};
  const uint64_t end = offset + RoundUp(out.size());
  for (auto run = FirstRunBehind(offset); run != runs_.end() && run->address < end; ++run) {
    const uint64_t from = std::max(offset, run->address),
                   to = std::min(end, run->address + run->pages * kPageSize);
    RK_RETURN_IF_ERROR(image_->ReadPages(object_, from, {pages + (from - offset), to - from}));
  }
  std::memcpy(out.data(), pages, out.size());
  return absl::OkStatus();
}

uint64_t FileContent::NextNotZero(int fd, uint64_t offset) const {
  uint64_t next = size_;
  if (const auto run = FirstRunBehind(offset); run != runs_.end())
    next = std::min(next, std::max(offset, run->address));
  const off_t data = ::lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0 && errno != ENXIO) return offset;  // the file system can't tell
  if (data >= 0) next = std::min(next, static_cast<uint64_t>(data) / kPageSize * kPageSize);
  return std::max(next, offset);
}

absl::StatusOr<bool> FileContent::IsIn(int fd) const {
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(fd));
  if (now != size_) return false;
  return IsEqual(fd, size_);
}

absl::StatusOr<bool> FileContent::BeginsAsIn(int fd) const {
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(fd));
  return IsEqual(fd, std::min(now, size_));
}

absl::StatusOr<bool> FileContent::IsEqual(int fd, uint64_t end) const {
  std::byte wanted[kChunkBytes], found[kChunkBytes];
  for (uint64_t at = NextNotZero(fd, 0); at < end; at = NextNotZero(fd, at + kChunkBytes)) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kChunkBytes, end - at));
    RK_RETURN_IF_ERROR(Read(at, {wanted, bytes}));
    RK_RETURN_IF_ERROR(ReadOrZero(fd, at, {found, bytes}));
    if (std::memcmp(wanted, found, bytes) != 0) return false;
  }
  return true;
}

absl::Status FileContent::WriteTo(int fd) const {
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(fd));
  auto set_size = [&] {
    return ::ftruncate(fd, static_cast<off_t>(size_)) == 0 ? absl::OkStatus()
                                                           : ErrnoStatus(errno, "setting its size");
  };
  if (now > size_) RK_RETURN_IF_ERROR(set_size());
  std::byte wanted[kChunkBytes], found[kChunkBytes];
  for (uint64_t at = NextNotZero(fd, 0); at < size_; at = NextNotZero(fd, at + kChunkBytes)) {
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kChunkBytes, size_ - at));
    RK_RETURN_IF_ERROR(Read(at, {wanted, bytes}));
    RK_RETURN_IF_ERROR(ReadOrZero(fd, at, {found, bytes}));
    for (size_t page = 0; page < bytes; page += kPageSize) {
      const size_t length = std::min(kPageSize, bytes - page);
      if (std::memcmp(wanted + page, found + page, length) == 0) continue;
      RK_RETURN_IF_ERROR(ReplacePage(fd, at + page, {wanted + page, length}));
    }
  }
  if (now < size_) RK_RETURN_IF_ERROR(set_size());
  return absl::OkStatus();
}

absl::Status FileContent::WriteBehind(absl::string_view head, int file, const std::string& path,
                                      const std::atomic<bool>* cancel) const {
  RK_RETURN_IF_ERROR(WriteFully(file, head.data(), head.size(), path));
  if (::ftruncate(file, static_cast<off_t>(head.size() + size_)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("writing ", path));
  }
  std::byte chunk[kChunkBytes];
  for (const store::PageRun& run : runs_) {
    const uint64_t end = std::min(size_, run.address + run.pages * kPageSize);
    for (uint64_t at = run.address; at < end; at += kChunkBytes) {
      if (cancel != nullptr && *cancel)
        return absl::CancelledError(absl::StrCat("writing ", path, " was cancelled"));
      const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kChunkBytes, end - at));
      RK_RETURN_IF_ERROR(Read(at, {chunk, bytes}));
      RK_RETURN_IF_ERROR(Annotate(WriteAt(file, head.size() + at, {chunk, bytes}), path));
    }
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
