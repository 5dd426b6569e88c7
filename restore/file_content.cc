#include "restore/file_content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/positioned_io.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

constexpr size_t kChunkBytes = 64 * kPageSize;
// Of what is read in order: enough for several threads.
constexpr size_t kManyBytes = 8u << 20;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kPageSize - 1) / kPageSize * kPageSize; }

bool IsZero(absl::Span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Puts one page, or less at the end of the file, of zeros where something else is now: a hole where possible.
absl::Status ReplaceByZeros(int fd, uint64_t offset, absl::Span<const std::byte> zeros) {
  if (zeros.size() == kPageSize &&
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(kPageSize)) == 0) {
    return absl::OkStatus();
  }
  return WriteAt(fd, offset, zeros);
}

// Writes those pages of `wanted` at `offset` that the file has otherwise, neighbours together. What of them
// is zero becomes a hole.
absl::Status ReplaceDiffering(int fd, uint64_t offset, absl::Span<const std::byte> wanted) {
  std::byte found[kChunkBytes];
  RK_RETURN_IF_ERROR(ReadAtOrZero(fd, offset, {found, wanted.size()}));
  size_t differing = 0;  // those from here on have not been written yet
  const auto write_until = [&](size_t end) {
    const absl::Span<const std::byte> part = wanted.subspan(differing, end - differing);
    return part.empty() ? absl::OkStatus() : WriteAt(fd, offset + differing, part);
  };
  for (size_t page = 0; page < wanted.size(); page += kPageSize) {
    const absl::Span<const std::byte> its = wanted.subspan(page, kPageSize);
    const bool same = std::memcmp(its.data(), found + page, its.size()) == 0;
    if (!same && !IsZero(its)) continue;
    RK_RETURN_IF_ERROR(write_until(page));
    if (!same) RK_RETURN_IF_ERROR(ReplaceByZeros(fd, offset + page, its));
    differing = page + its.size();
  }
  return write_until(wanted.size());
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

absl::StatusOr<std::string> FileContent::Beginning(size_t bytes) const {
  std::string beginning(std::min<uint64_t>(bytes, size_), '\0');
  RK_RETURN_IF_ERROR(ForEachPiece(beginning.size(), [&](uint64_t offset, absl::Span<const std::byte> piece) {
    std::memcpy(beginning.data() + offset, piece.data(), piece.size());
    return absl::OkStatus();
  }));
  return beginning;
}

absl::Status FileContent::ForEachPiece(uint64_t end, const Piece& piece) const {
  std::vector<store::PageRun> runs;
  for (const store::PageRun& run : runs_) {
    if (run.address >= end) break;
    runs.push_back(run);
    runs.back().pages = std::min(run.pages, RoundUp(end - run.address) / kPageSize);
  }
  if (runs.empty()) return absl::OkStatus();
  return image_->ReadRanges(object_, runs, [&](uint64_t address, absl::Span<const std::byte> pages) {
    pages = pages.first(std::min<uint64_t>(pages.size(), end - address));
    for (; !pages.empty(); pages.remove_prefix(std::min(pages.size(), kChunkBytes))) {
      RK_RETURN_IF_ERROR(piece(address, pages.first(std::min(pages.size(), kChunkBytes))));
      address += kChunkBytes;
    }
    return absl::OkStatus();
  });
}

absl::Status FileContent::ForEachSuperfluous(int fd, uint64_t end, const Piece& piece) const {
  std::byte found[kChunkBytes];
  auto run = runs_.begin();
  for (uint64_t at = 0; at < end;) {
    const off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    // Where the file system can't tell, all is data.
    if (data >= 0) at = std::max(at, static_cast<uint64_t>(data) / kPageSize * kPageSize);
    if (at >= end) break;
    while (run != runs_.end() && run->end() <= at) ++run;
    if (run != runs_.end() && run->address <= at) {
      at = run->end();
      continue;
    }
    const uint64_t gap_end = run == runs_.end() ? end : std::min(end, run->address);
    const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kChunkBytes, gap_end - at));
    RK_RETURN_IF_ERROR(ReadAtOrZero(fd, at, {found, bytes}));
    if (!IsZero({found, bytes})) RK_RETURN_IF_ERROR(piece(at, {found, bytes}));
    at += bytes;
  }
  return absl::OkStatus();
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
  std::atomic<bool> differs = false;
  const auto found_one = [&] {
    differs = true;
    return absl::AbortedError("it differs");
  };
  absl::Status read =
      ForEachSuperfluous(fd, end, [&](uint64_t, absl::Span<const std::byte>) { return found_one(); });
  if (read.ok()) {
    read = ForEachPiece(end, [&](uint64_t at, absl::Span<const std::byte> wanted) {
      std::byte found[kChunkBytes];
      RK_RETURN_IF_ERROR(ReadAtOrZero(fd, at, {found, wanted.size()}));
      return std::memcmp(wanted.data(), found, wanted.size()) == 0 ? absl::OkStatus() : found_one();
    });
  }
  if (differs) return false;
  RK_RETURN_IF_ERROR(read);
  return true;
}

absl::Status FileContent::MakeZero(int fd) const {
  return ForEachSuperfluous(fd, size_, [&](uint64_t at, absl::Span<const std::byte> found) {
    static constexpr std::byte kZeros[kPageSize] = {};
    for (size_t page = 0; page < found.size(); page += kPageSize) {
      const size_t bytes = std::min(kPageSize, found.size() - page);
      if (IsZero(found.subspan(page, bytes))) continue;
      RK_RETURN_IF_ERROR(ReplaceByZeros(fd, at + page, {kZeros, bytes}));
    }
    return absl::OkStatus();
  });
}

absl::Status FileContent::WriteTo(int fd) const {
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(fd));
  auto set_size = [&] {
    return ::ftruncate(fd, static_cast<off_t>(size_)) == 0 ? absl::OkStatus()
                                                           : ErrnoStatus(errno, "setting its size");
  };
  if (now > size_) RK_RETURN_IF_ERROR(set_size());
  RK_RETURN_IF_ERROR(MakeZero(fd));
  const uint64_t there = std::min(now, size_);
  const auto replace = [&](uint64_t at, absl::Span<const std::byte> wanted) {
    return ReplaceDiffering(fd, at, wanted);
  };
  RK_RETURN_IF_ERROR(ForEachPiece(there, replace));
  if (now >= size_) return absl::OkStatus();
  RK_RETURN_IF_ERROR(Append(fd, there));
  return set_size();
}

absl::Status FileContent::Append(int fd, uint64_t begin) const {
  std::vector<std::byte> pages;
  for (const store::PageRun& run : runs_) {
    const uint64_t end = std::min(size_, run.end());
    for (uint64_t at = std::max(run.address, begin / kPageSize * kPageSize); at < end; at += kManyBytes) {
      const size_t bytes = static_cast<size_t>(std::min<uint64_t>(kManyBytes, end - at));
      pages.resize(RoundUp(bytes));
      RK_RETURN_IF_ERROR(image_->ReadPages(object_, at, absl::MakeSpan(pages)));
      RK_RETURN_IF_ERROR(WriteAt(fd, at, absl::MakeConstSpan(pages).first(bytes)));
    }
  }
  return absl::OkStatus();
}

absl::Status FileContent::Fill(int fd) const {
  if (::ftruncate(fd, static_cast<off_t>(size_)) != 0) return ErrnoStatus(errno, "setting its size");
  return ForEachPiece(
      size_, [&](uint64_t at, absl::Span<const std::byte> wanted) { return WriteAt(fd, at, wanted); });
}

absl::Status FileContent::WriteBehind(absl::string_view head, int file, const std::string& path,
                                      const std::atomic<bool>* cancel) const {
  RK_RETURN_IF_ERROR(WriteFully(file, head.data(), head.size(), path));
  if (::ftruncate(file, static_cast<off_t>(head.size() + size_)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("writing ", path));
  }
  return ForEachPiece(size_, [&](uint64_t at, absl::Span<const std::byte> wanted) {
    if (cancel != nullptr && *cancel)
      return absl::CancelledError(absl::StrCat("writing ", path, " was cancelled"));
    return Annotate(WriteAt(file, head.size() + at, wanted), path);
  });
}

}  // namespace rekindle::restore
