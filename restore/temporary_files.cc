#include "restore/temporary_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/permission_bits.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::restore {
namespace {

constexpr char kOwnSharedMemory[] = "/dev/shm/";
// Whoever has made the image. More than any that is taken has (ckpt/temporary_files.h).
constexpr uint64_t kMostBytes = uint64_t{128} << 20;
constexpr size_t kMostFiles = 16384;

bool LiesInTheFolders(absl::string_view path) {
  if (!absl::StartsWith(path, "/tmp/") && !absl::StartsWith(path, kOwnSharedMemory)) return false;
  path.remove_prefix(1);
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::none_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return part.empty() || part == "." || part == ".." || part.find('\0') != absl::string_view::npos;
  });
}

// An image may have come from another store.
bool IsSound(const v1::TemporaryFile& file, bool shared_memory, uint64_t extents_end, uint64_t contents) {
  if (!LiesInTheFolders(file.path()) || extents_end > contents) return false;
  if (!shared_memory && absl::StartsWith(file.path(), kOwnSharedMemory)) return false;  // the machine's
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
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  return {ns / kNsPerSecond, ns % kNsPerSecond};
}

struct Times {
  explicit Times(const v1::TemporaryFile& file) : both{{0, UTIME_OMIT}, TimeOf(file.modified_ns())} {}
  const timespec both[2];
};

absl::Status MakingFailed(const v1::TemporaryFile& file) {
  return ErrnoStatus(errno, absl::StrCat("making ", absl::CHexEscape(file.path()), " of a copy"));
}

absl::Status GivingFailed(const v1::TemporaryFile& file) {
  return ErrnoStatus(errno, absl::StrCat("giving ", absl::CHexEscape(file.path()), " to a copy's user"));
}

bool IsOurs(const v1::TemporaryFile& file) { return file.uid() == ::geteuid() && file.gid() == ::getegid(); }

bool IsRegular(const v1::TemporaryFile& file) { return S_ISREG(file.mode()) && file.target().empty(); }

// Makes files in a copy's own folders, and nowhere else, whatever their names say: no link is followed, and
// nothing is changed that is mounted there, which is the machine's.
class Maker {
 public:
  Maker(int root, const std::string& contents) : root_(root), content_(contents.data()) {}

  absl::Status Make(const google::protobuf::RepeatedPtrField<v1::TemporaryFile>& files) {
    for (const v1::TemporaryFile& file : files) {
      if (IsRegular(file)) {
        RK_RETURN_IF_ERROR(MakeRegular(file));
      } else if (!S_ISLNK(file.mode())) {
        RK_RETURN_IF_ERROR(MakeOther(file));
      }
    }
    // On none of these a way leads on.
    for (const v1::TemporaryFile& file : files) {
      if (S_ISLNK(file.mode())) RK_RETURN_IF_ERROR(MakeOther(file));
    }
    // Of folders once nothing is made in them any more, which might change their times, or get their group.
    for (const v1::TemporaryFile& file : files) {
      if (!IsRegular(file)) RK_RETURN_IF_ERROR(Finish(file));
    }
    return absl::OkStatus();
  }

  absl::Status Give(const v1::TemporaryFile& file, const Owner& owner) {
    if (S_ISDIR(file.mode())) {
      const UniqueFd folder = Open(file.path(), O_RDONLY);
      if (!folder.valid()) return errno == EXDEV ? absl::OkStatus() : GivingFailed(file);
      return ::fchown(folder.get(), owner.uid, owner.gid) == 0 ? absl::OkStatus() : GivingFailed(file);
    }
    const char* name;
    RK_RETURN_IF_ERROR(FindParent(file, &name));
    return ::fchownat(parent_.get(), name, owner.uid, owner.gid, AT_SYMLINK_NOFOLLOW) == 0
               ? absl::OkStatus()
               : GivingFailed(file);
  }

 private:
  // A folder in a copy's own. Not valid, and EXDEV: it is mounted there, or lies in what is.
  UniqueFd Open(absl::string_view path, uint64_t flags) {
    const std::string folder = absl::StartsWith(path, "/tmp") ? "/tmp" : "/dev/shm";
    if (folder != base_name_) {
      base_name_ = folder;
      base_.Reset(::openat(root_, folder.c_str() + 1, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    }
    const std::string rest(path == folder ? "." : path.substr(folder.size() + 1));
    open_how how = {};
    how.flags = flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    return UniqueFd(static_cast<int>(::syscall(SYS_openat2, base_.get(), rest.c_str(), &how, sizeof how)));
  }

  // `*name` is what is made in `parent_`.
  absl::Status FindParent(const v1::TemporaryFile& file, const char** name) {
    const size_t end = file.path().rfind('/');
    *name = file.path().c_str() + end + 1;
    const absl::string_view parent = absl::string_view(file.path()).substr(0, end);
    if (parent_.valid() && parent == parent_name_) return absl::OkStatus();
    parent_name_ = std::string(parent);
    parent_ = Open(parent, O_PATH);
    if (parent_.valid()) return absl::OkStatus();
    if (errno != EXDEV) return MakingFailed(file);
    return absl::FailedPreconditionError(
        absl::StrCat("the image has ", absl::CHexEscape(file.path()),
                     ", which lies in a folder of Rekindle's own on this machine: its store, runtime and log "
                     "folders must lie elsewhere to start copies of that image"));
  }

  // There may be thousands: no call that is not needed.
  absl::Status MakeRegular(const v1::TemporaryFile& file) {
    const char* name;
    RK_RETURN_IF_ERROR(FindParent(file, &name));
    const UniqueFd made(
        ::openat(parent_.get(), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!made.valid()) return MakingFailed(file);
    uint64_t end = 0;
    for (const v1::FileExtent& extent : file.extents()) {
      if (extent.offset() != end && ::lseek(made.get(), static_cast<off_t>(extent.offset()), SEEK_SET) < 0)
        return MakingFailed(file);
      RK_RETURN_IF_ERROR(WriteFully(made.get(), content_, extent.length(), absl::CHexEscape(file.path())));
      content_ += extent.length();
      end = extent.offset() + extent.length();
    }
    if (file.size() != end && ::ftruncate(made.get(), static_cast<off_t>(file.size())) != 0)
      return MakingFailed(file);
    if (!IsOurs(file) && ::fchown(made.get(), file.uid(), file.gid()) != 0) return MakingFailed(file);
    if (::fchmod(made.get(), file.mode() & kPermissionBits) != 0) return MakingFailed(file);
    return ::futimens(made.get(), Times(file).both) == 0 ? absl::OkStatus() : MakingFailed(file);
  }

  absl::Status MakeOther(const v1::TemporaryFile& file) {
    const char* name;
    RK_RETURN_IF_ERROR(FindParent(file, &name));
    const int in = parent_.get();
    if (!S_ISLNK(file.mode()) && !file.target().empty()) {
      // The kernel makes none from what is mounted there.
      return ::linkat(root_, file.target().c_str() + 1, in, name, 0) == 0 ? absl::OkStatus()
                                                                          : MakingFailed(file);
    }
    if (S_ISDIR(file.mode())) {
      // It may lead to what stays the machine's.
      if (::mkdirat(in, name, 0700) != 0 && errno != EEXIST) return MakingFailed(file);
      return absl::OkStatus();
    }
    if (S_ISFIFO(file.mode())) {
      if (::mkfifoat(in, name, 0600) != 0) return MakingFailed(file);
    } else if (S_ISLNK(file.mode())) {
      if (::symlinkat(file.target().c_str(), in, name) != 0) return MakingFailed(file);
    } else {
      return absl::OkStatus();
    }
    if (!IsOurs(file) && ::fchownat(in, name, file.uid(), file.gid(), AT_SYMLINK_NOFOLLOW) != 0)
      return MakingFailed(file);
    if (S_ISFIFO(file.mode()) && ::fchmodat(in, name, file.mode() & kPermissionBits, 0) != 0)
      return MakingFailed(file);
    return absl::OkStatus();
  }

  absl::Status Finish(const v1::TemporaryFile& file) {
    if (!S_ISDIR(file.mode())) {
      const char* name;
      RK_RETURN_IF_ERROR(FindParent(file, &name));
      return ::utimensat(parent_.get(), name, Times(file).both, AT_SYMLINK_NOFOLLOW) == 0
                 ? absl::OkStatus()
                 : MakingFailed(file);
    }
    const UniqueFd folder = Open(file.path(), O_RDONLY);
    if (!folder.valid()) return errno == EXDEV ? absl::OkStatus() : MakingFailed(file);
    if (!IsOurs(file) && ::fchown(folder.get(), file.uid(), file.gid()) != 0) return MakingFailed(file);
    if (::fchmod(folder.get(), file.mode() & kPermissionBits) != 0) return MakingFailed(file);
    return ::futimens(folder.get(), Times(file).both) == 0 ? absl::OkStatus() : MakingFailed(file);
  }

  const int root_;
  const char* content_;
  std::string base_name_, parent_name_;
  UniqueFd base_, parent_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TemporaryFiles>> TemporaryFiles::Read(const store::ImageReader& image,
                                                                           const v1::JobManifest& manifest,
                                                                           std::vector<std::string> kept) {
  if (!manifest.has_temporary()) return nullptr;
  auto files = std::make_shared<TemporaryFiles>();
  files->record_ = manifest.temporary();
  files->kept_ = std::move(kept);
  const std::string what = absl::StrCat("what image ", image.info().reference, " says of temporary files");
  if (static_cast<size_t>(files->record_.files_size()) > kMostFiles)
    return absl::DataLossError(absl::StrCat(what, " makes no sense: there are too many"));
  uint64_t bytes = 0;
  for (const v1::TemporaryFile& file : files->record_.files()) {
    for (const v1::FileExtent& extent : file.extents()) {
      if (extent.length() > kMostBytes - bytes)
        return absl::DataLossError(absl::StrCat(what, " makes no sense: there is too much"));
      bytes += extent.length();
      files->bytes_in_copy_ += (extent.length() + store::kPageSize - 1) / store::kPageSize * store::kPageSize;
    }
  }
  if (bytes > 0) {
    RK_ASSIGN_OR_RETURN(files->contents_, image.ReadBlob(v1::kTemporaryContents));
  }
  uint64_t end = 0;
  for (const v1::TemporaryFile& file : files->record_.files()) {
    for (const v1::FileExtent& extent : file.extents()) end += extent.length();
    if (IsSound(file, files->record_.shared_memory(), end, files->contents_.size())) continue;
    return absl::DataLossError(absl::StrCat(what, " makes no sense: ", absl::CHexEscape(file.path())));
  }
  return files;
}

bool TemporaryFiles::Has(const std::string& path) const { return LiesInOwnTemporary(path, kept_); }

absl::Status TemporaryFiles::MakeIn(const std::string& root_path) const {
  if (record_.files().empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd root, OpenFile(root_path, O_PATH | O_DIRECTORY));
  return Maker(root.get(), contents_).Make(record_.files());
}

absl::Status TemporaryFiles::GiveTo(const Owner& owner, const std::string& root_path) const {
  const bool any = std::any_of(record_.files().begin(), record_.files().end(),
                               [](const v1::TemporaryFile& file) { return file.uid() == 0; });
  if (!any || owner.uid == 0) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd root, OpenFile(root_path, O_PATH | O_DIRECTORY));
  Maker maker(root.get(), contents_);
  for (const v1::TemporaryFile& file : record_.files()) {
    if (file.uid() == 0) RK_RETURN_IF_ERROR(maker.Give(file, owner));
  }
  return absl::OkStatus();
}

absl::Status OwnPlaces::MakeFolders(Sandbox& sandbox, const std::string& host_name,
                                    const std::vector<std::string>& needed) const {
  if (!any()) return absl::OkStatus();
  OwnTemporary own = temporary;
  std::copy_if(needed.begin(), needed.end(), std::back_inserter(own.keep),
               [](const std::string& path) { return absl::StartsWith(path, kOwnSharedMemory); });
  return sandbox.Set(host_name, {}, own);
}

std::vector<std::string> OwnPlaces::folders() const {
  std::vector<std::string> folders;
  for (const char* folder : {"/tmp", "/var/tmp"}) {
    if (temporary.bytes > 0 && PathExists("/tmp") && PathExists(folder)) folders.emplace_back(folder);
  }
  if (temporary.shared_memory > 0 && PathExists("/dev/shm")) folders.emplace_back("/dev/shm");
  return folders;
}

absl::Status OwnPlaces::MakeFiles(const Sandbox& sandbox) const {
  if (files == nullptr) return absl::OkStatus();
  return files->MakeIn(absl::StrCat("/proc/", sandbox.init_pid(), "/root"));
}

absl::Status OwnPlaces::GiveFilesTo(const Owner& owner, const Sandbox& sandbox) const {
  if (files == nullptr) return absl::OkStatus();
  return files->GiveTo(owner, absl::StrCat("/proc/", sandbox.init_pid(), "/root"));
}

}  // namespace rekindle::restore
