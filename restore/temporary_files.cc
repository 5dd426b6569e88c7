#include "restore/temporary_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::restore {
namespace {

constexpr mode_t kPermissions = 07777;
constexpr char kOwnSharedMemory[] = "/dev/shm/";

bool LiesInTheFolders(absl::string_view path) {
  if (!absl::StartsWith(path, "/tmp/") && !absl::StartsWith(path, kOwnSharedMemory)) return false;
  path.remove_prefix(1);
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::none_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return part.empty() || part == "." || part == ".." || part.find('\0') != absl::string_view::npos;
  });
}

// An image may have come from another store.
bool IsSound(const v1::TemporaryFile& file, uint64_t extents_end, uint64_t contents) {
  if (!LiesInTheFolders(file.path()) || extents_end > contents) return false;
  uint64_t end = 0;
  for (const v1::FileExtent& extent : file.extents()) {
    if (extent.offset() < end || extent.length() > file.size() ||
        extent.offset() > file.size() - extent.length()) {
      return false;
    }
    end = extent.offset() + extent.length();
  }
  if (S_ISLNK(file.mode())) return !file.target().empty();
  return file.target().empty() || LiesInTheFolders(file.target());
}

timespec TimeOf(int64_t ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  return {ns / kSecond, ns % kSecond};
}

absl::Status MakingFailed(const v1::TemporaryFile& file) {
  return ErrnoStatus(errno, absl::StrCat("making ", absl::CHexEscape(file.path()), " of a copy"));
}

const char* InRoot(const v1::TemporaryFile& file) { return file.path().c_str() + 1; }

struct Times {
  explicit Times(const v1::TemporaryFile& file) : both{{0, UTIME_OMIT}, TimeOf(file.modified_ns())} {}
  const timespec both[2];
};

bool IsOurs(const v1::TemporaryFile& file) { return file.uid() == ::geteuid() && file.gid() == ::getegid(); }

bool IsRegular(const v1::TemporaryFile& file) { return S_ISREG(file.mode()) && file.target().empty(); }

// There may be thousands: no call that is not needed. `*content` goes behind what is the file's.
absl::Status MakeRegular(int root, const v1::TemporaryFile& file, const char** content) {
  const UniqueFd made(
      ::openat(root, InRoot(file), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made.valid()) return MakingFailed(file);
  uint64_t end = 0;
  for (const v1::FileExtent& extent : file.extents()) {
    if (extent.offset() != end && ::lseek(made.get(), static_cast<off_t>(extent.offset()), SEEK_SET) < 0)
      return MakingFailed(file);
    RK_RETURN_IF_ERROR(WriteFully(made.get(), *content, extent.length(), file.path()));
    *content += extent.length();
    end = extent.offset() + extent.length();
  }
  if (file.size() != end && ::ftruncate(made.get(), static_cast<off_t>(file.size())) != 0)
    return MakingFailed(file);
  if (!IsOurs(file) && ::fchown(made.get(), file.uid(), file.gid()) != 0) return MakingFailed(file);
  if (::fchmod(made.get(), file.mode() & kPermissions) != 0) return MakingFailed(file);
  return ::futimens(made.get(), Times(file).both) == 0 ? absl::OkStatus() : MakingFailed(file);
}

absl::Status MakeOther(int root, const v1::TemporaryFile& file) {
  const char* const name = InRoot(file);
  if (!S_ISLNK(file.mode()) && !file.target().empty()) {
    return ::linkat(root, file.target().c_str() + 1, root, name, 0) == 0 ? absl::OkStatus()
                                                                         : MakingFailed(file);
  }
  if (S_ISDIR(file.mode())) {
    // It may lead to what stays the machine's.
    if (::mkdirat(root, name, 0700) != 0 && errno != EEXIST) return MakingFailed(file);
  } else if (S_ISFIFO(file.mode())) {
    if (::mkfifoat(root, name, 0600) != 0) return MakingFailed(file);
  } else if (S_ISLNK(file.mode())) {
    if (::symlinkat(file.target().c_str(), root, name) != 0) return MakingFailed(file);
  }
  if (!IsOurs(file) && ::fchownat(root, name, file.uid(), file.gid(), AT_SYMLINK_NOFOLLOW) != 0)
    return MakingFailed(file);
  if (S_ISFIFO(file.mode()) && ::fchmodat(root, name, file.mode() & kPermissions, 0) != 0)
    return MakingFailed(file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TemporaryFiles>> TemporaryFiles::Read(const store::ImageReader& image,
                                                                           const v1::JobManifest& manifest,
                                                                           std::vector<std::string> kept) {
  if (!manifest.has_temporary()) return nullptr;
  auto files = std::make_shared<TemporaryFiles>();
  files->record_ = manifest.temporary();
  files->kept_ = std::move(kept);
  uint64_t bytes = 0;
  for (const v1::TemporaryFile& file : files->record_.files()) {
    for (const v1::FileExtent& extent : file.extents()) bytes += extent.length();
  }
  if (bytes > 0) {
    RK_ASSIGN_OR_RETURN(files->contents_, image.ReadBlob(v1::kTemporaryContents));
  }
  uint64_t end = 0;
  for (const v1::TemporaryFile& file : files->record_.files()) {
    for (const v1::FileExtent& extent : file.extents()) end += extent.length();
    if (IsSound(file, end, files->contents_.size())) continue;
    return absl::DataLossError(
        absl::StrCat("what image ", image.info().reference,
                     " says of temporary files makes no sense: ", absl::CHexEscape(file.path())));
  }
  for (const v1::NeededFile& file : manifest.files()) {
    if (file.written() && files->Has(file.path())) files->written_ = file.path();
  }
  return files;
}

bool TemporaryFiles::Has(const std::string& path) const {
  return LiesInOwnTemporary(path, kept_) ||
         (record_.shared_memory() && absl::StartsWith(path, kOwnSharedMemory));
}

absl::Status TemporaryFiles::MakeIn(const std::string& root_path) const {
  if (record_.files().empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd root, OpenFile(root_path, O_PATH | O_DIRECTORY));
  const char* content = contents_.data();
  // Links last: none leads anything astray that is made.
  for (const v1::TemporaryFile& file : record_.files()) {
    if (IsRegular(file)) {
      RK_RETURN_IF_ERROR(MakeRegular(root.get(), file, &content));
    } else if (!S_ISLNK(file.mode())) {
      RK_RETURN_IF_ERROR(MakeOther(root.get(), file));
    }
  }
  for (const v1::TemporaryFile& file : record_.files()) {
    if (S_ISLNK(file.mode())) RK_RETURN_IF_ERROR(MakeOther(root.get(), file));
  }
  // Of folders once nothing is made in them any more, which might change their times, or get their group.
  for (const v1::TemporaryFile& file : record_.files()) {
    if (IsRegular(file)) continue;
    if (S_ISDIR(file.mode()) && ::fchmodat(root.get(), InRoot(file), file.mode() & kPermissions, 0) != 0)
      return MakingFailed(file);
    if (::utimensat(root.get(), InRoot(file), Times(file).both, AT_SYMLINK_NOFOLLOW) != 0)
      return MakingFailed(file);
  }
  return absl::OkStatus();
}

absl::Status OwnPlaces::MakeFolders(Sandbox& sandbox, std::vector<std::string> needed) const {
  if (temporary.bytes > 0) RK_RETURN_IF_ERROR(sandbox.Set("", {}, temporary));
  if (!shared_memory) return absl::OkStatus();
  needed.insert(needed.end(), temporary.keep.begin(), temporary.keep.end());
  return sandbox.OwnSharedMemory(needed);
}

std::vector<std::string> OwnPlaces::folders() const {
  std::vector<std::string> folders;
  for (const char* folder : {"/tmp", "/var/tmp"}) {
    if (temporary.bytes > 0 && PathExists("/tmp") && PathExists(folder)) folders.emplace_back(folder);
  }
  if (shared_memory) folders.emplace_back("/dev/shm");
  return folders;
}

absl::Status OwnPlaces::MakeFiles(const Sandbox& sandbox) const {
  if (files == nullptr) return absl::OkStatus();
  return files->MakeIn(absl::StrCat("/proc/", sandbox.init_pid(), "/root"));
}

}  // namespace rekindle::restore
