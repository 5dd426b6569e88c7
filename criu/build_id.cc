#include "criu/build_id.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/status.h"

namespace rekindle::criu {
namespace {

constexpr size_t kFirstRead = 4096;  // with nearly all files it has the note, too
constexpr size_t kMostHeaders = 128;
constexpr uint64_t kLargestNotes = uint64_t{64} << 10;
constexpr char kOwner[] = "GNU";

// What the file's first bytes, read once, don't have is read from the file.
class Reader {
 public:
  explicit Reader(int fd) : fd_(fd), first_(kFirstRead) {}

  absl::Status Open() {
    const ssize_t n = ::pread(fd_, first_.data(), first_.size(), 0);
    if (n < 0) return ErrnoStatus(errno, "reading the head of a program");
    first_.resize(static_cast<size_t>(n));
    return absl::OkStatus();
  }

  absl::Status Read(uint64_t offset, void* to, size_t size) const {
    if (size <= first_.size() && offset <= first_.size() - size) {
      memcpy(to, first_.data() + offset, size);
      return absl::OkStatus();
    }
    const ssize_t n = ::pread(fd_, to, size, static_cast<off_t>(offset));
    if (n < 0) return ErrnoStatus(errno, "reading a program's notes");
    return static_cast<size_t>(n) == size ? absl::OkStatus() : absl::DataLossError("a program ends early");
  }

 private:
  const int fd_;
  std::vector<char> first_;
};

// Empty: not among them.
absl::StatusOr<std::string> FindIn(const std::vector<char>& notes, size_t alignment) {
  auto aligned = [alignment](size_t at) { return (at + alignment - 1) / alignment * alignment; };
  for (size_t at = 0; notes.size() - at >= sizeof(Elf64_Nhdr);) {
    Elf64_Nhdr note;
    memcpy(&note, notes.data() + at, sizeof note);
    at += sizeof note;
    const size_t description = aligned(at + note.n_namesz);
    if (description < at || description > notes.size() || note.n_descsz > notes.size() - description) {
      return absl::DataLossError("a program's note is longer than all of its notes");
    }
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof kOwner && note.n_descsz > 0 &&
        memcmp(notes.data() + at, kOwner, sizeof kOwner) == 0) {
      return std::string(notes.data() + description, note.n_descsz);
    }
    at = std::min(notes.size(), aligned(description + note.n_descsz));
  }
  return std::string();
}

}  // namespace

absl::StatusOr<std::string> ReadBuildId(int fd) {
  Reader reader(fd);
  RK_RETURN_IF_ERROR(reader.Open());
  Elf64_Ehdr header;
  if (!reader.Read(0, &header, sizeof header).ok() || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return absl::NotFoundError("it is no 64-bit program or library");
  }
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMostHeaders) {
    return absl::DataLossError("its program headers make no sense");
  }
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    RK_RETURN_IF_ERROR(reader.Read(header.e_phoff + i * sizeof segment, &segment, sizeof segment));
    if (segment.p_type != PT_NOTE || segment.p_filesz == 0) continue;
    if (segment.p_filesz > kLargestNotes) return absl::DataLossError("its notes are too long");
    std::vector<char> notes(segment.p_filesz);
    RK_RETURN_IF_ERROR(reader.Read(segment.p_offset, notes.data(), notes.size()));
    RK_ASSIGN_OR_RETURN(std::string id, FindIn(notes, segment.p_align == 8 ? 8 : 4));
    if (!id.empty()) return id;
  }
  return absl::NotFoundError("it has no build ID");
}

}  // namespace rekindle::criu
