#include "restore/clone_shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cgroup_memory.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/file_content.h"

namespace rekindle::restore {
namespace {

constexpr char kSharedMemoryFolder[] = "/dev/shm/";

// The folders on the way to it, which nothing is known of but their names.
absl::Status MakeFolders(const std::string& root, const std::string& path) {
  for (size_t slash = path.find('/', sizeof kSharedMemoryFolder - 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string folder = root + path.substr(0, slash);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoStatus(errno, "making its folder");
  }
  return absl::OkStatus();
}

bool StaysInFolder(const std::string& path) {
  if (!absl::StartsWith(path, kSharedMemoryFolder)) return false;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") return false;
  }
  return true;
}

// Holes stay holes.
absl::Status CopyData(int from, int to, uint64_t size) {
  if (::ftruncate(to, static_cast<off_t>(size)) != 0) return ErrnoStatus(errno, "giving it its size");
  for (off_t at = 0;;) {
    at = ::lseek(from, at, SEEK_DATA);
    if (at < 0) return errno == ENXIO ? absl::OkStatus() : ErrnoStatus(errno, "looking for its data");
    const off_t end = ::lseek(from, at, SEEK_HOLE);
    if (end < 0) return ErrnoStatus(errno, "looking for its holes");
    if (::lseek(to, at, SEEK_SET) < 0) return ErrnoStatus(errno, "writing it");
    while (at < end) {
      const ssize_t n = ::sendfile(to, from, &at, static_cast<size_t>(end - at));
      if (n < 0 && errno != EINTR) return ErrnoStatus(errno, "writing it");
      if (n == 0) return absl::InternalError("its content has become shorter");
    }
  }
}

}  // namespace

bool IsNamelessMemory(const v1::WrittenFile& file) {
  return file.nameless() && absl::StartsWith(file.path(), v1::kNamelessPrefix) &&
         file.path().find('/', sizeof kSharedMemoryFolder - 1) == std::string::npos;
}

absl::StatusOr<CloneSharedMemory> CloneSharedMemory::Read(const store::ImageReader& image,
                                                          const v1::JobManifest& manifest) {
  CloneSharedMemory memory;
  for (const v1::WrittenFile& record : manifest.written_files()) {
    if (!record.shared_memory()) continue;
    if (!StaysInFolder(record.path())) {
      return absl::DataLossError(absl::StrCat("the image says of ", record.path(),
                                              " that it is shared memory, which is in ",
                                              kSharedMemoryFolder));
    }
    if (record.size() > 0 && record.content_object().empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the job has shared memory, ", record.path(),
          ", whose content the image does not have (it was left out, or did not fit): its copies can't have "
          "it each for itself; take the image again"));
    }
    File file;
    file.record = record;
    file.content.Reset(::memfd_create("rekindle-shared-memory", MFD_CLOEXEC));
    if (!file.content.valid()) return ErrnoStatus(errno, "making room for shared memory");
    RK_ASSIGN_OR_RETURN(const FileContent content, FileContent::Open(image, record));
    RK_ASSIGN_OR_RETURN(const uint64_t available, OwnAvailableMemoryBytes());
    if (content.data_bytes() > available) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the image's shared memory ", record.path(), " has ", FormatBytes(content.data_bytes()), ", and ",
          FormatBytes(available), " of memory is free: end something, or give the daemon more"));
    }
    memory.bytes_ += content.data_bytes();
    RK_RETURN_IF_ERROR(Annotate(content.Fill(file.content.get()), absl::StrCat("reading ", record.path())));
    memory.files_.push_back(std::move(file));
  }
  return memory;
}

std::set<std::string> CloneSharedMemory::paths() const {
  std::set<std::string> paths;
  for (const File& file : files_) paths.insert(file.record.path());
  return paths;
}

absl::Status CloneSharedMemory::MakeIn(const std::string& root) const {
  for (const File& file : files_) {
    const v1::WrittenFile& record = file.record;
    const std::string what = absl::StrCat("making the shared memory ", record.path(), " of a copy");
    RK_RETURN_IF_ERROR(Annotate(MakeFolders(root, record.path()), what));
    UniqueFd made(
        ::open((root + record.path()).c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.valid()) return ErrnoStatus(errno, what);
    // Copies are made at the same time, and a descriptor has one place in its file.
    const UniqueFd content = Reopen(file.content.get(), O_RDONLY);
    if (!content.valid()) return ErrnoStatus(errno, what);
    RK_RETURN_IF_ERROR(Annotate(CopyData(content.get(), made.get(), record.size()), what));
    if (::fchown(made.get(), record.uid(), record.gid()) != 0 || ::fchmod(made.get(), record.mode()) != 0) {
      return ErrnoStatus(errno, what);
    }
  }
  return absl::OkStatus();
}

void CloneSharedMemory::RemoveNameless(const std::string& root) const {
  for (const File& file : files_) {
    if (IsNamelessMemory(file.record)) ::unlink((root + file.record.path()).c_str());
  }
}

}  // namespace rekindle::restore
