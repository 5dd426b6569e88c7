#include "functions/code_copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <openssl/evp.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/follow_in_root.h"
#include "base/human_units.h"
#include "base/status.h"
#include "functions/sealed_folder.h"

namespace rekindle::functions {
namespace {

constexpr mode_t kPermissions = 0777;
constexpr absl::string_view kCompiled = "__pycache__";
constexpr size_t kBufferBytes = size_t{256} << 10;
constexpr uint64_t kProgressBytes = uint64_t{16} << 20;

// A folder or a regular file; the latter are opened without waiting for another end, in case it is a FIFO.
UniqueFd OpenSource(int folder, const std::string& name, bool follow) {
  return OpenPlain(folder, name, O_RDONLY | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW));
}

absl::Status ReadError(int error, const std::string& path) {
  absl::Status status = ErrnoStatus(error, absl::StrCat("reading ", path));
  if (error == EACCES) {
    return Annotate(
        absl::PermissionDeniedError("the function's owner may not: make it readable, or leave it out"),
        status.message());
  }
  return status;
}

absl::Status WriteError(int error, const std::string& path) {
  absl::Status status = ErrnoStatus(error, absl::StrCat("writing the copy of ", path));
  if (error != ENOSPC && error != EDQUOT) return status;
  return WithMessage(status, absl::StrCat(status.message(),
                                          error == EDQUOT ? ": the owner's disk quota is used up"
                                                          : ": the file system of the store is full",
                                          ". Nothing was changed: make room, and deploy again"));
}

absl::StatusOr<struct stat> CheckSource(int fd, const std::string& path) {
  struct stat info;
  struct statfs system;
  if (::fstat(fd, &info) != 0 || ::fstatfs(fd, &system) != 0) return ReadError(errno, path);
  // It would show this process, and not what the owner sees.
  if (system.f_type == PROC_SUPER_MAGIC) {
    return absl::InvalidArgumentError(absl::StrCat(path, " lies in /proc: that is no code"));
  }
  if (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) return info;
  const char* kind = S_ISFIFO(info.st_mode) ? "a FIFO" : S_ISSOCK(info.st_mode) ? "a socket" : "a device";
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", kind, ": code is files, folders and links. Remove it from the folder"));
}

absl::StatusOr<std::vector<std::string>> NamesIn(int folder, const std::string& path) {
  absl::StatusOr<std::vector<std::string>> names = ListOpenDirectory(folder, path);
  if (!names.ok()) return ReadError(ErrnoOf(names.status()), path);
  return names;
}

// Does a link with this target, `depth` folders below the one it must not leave, stay in that?
bool StaysInside(absl::string_view target, int depth) {
  if (target.empty() || target[0] == '/') return false;
  for (const std::filesystem::path& part : std::filesystem::path(std::string(target))) {
    if (part == "..") {
      if (--depth < 0) return false;
    } else if (!part.empty() && part != ".") {
      ++depth;
    }
  }
  return true;
}

bool CannotShare(int error) {
  return error == EXDEV || error == EOPNOTSUPP || error == EINVAL || error == ENOSYS || error == ENOTTY ||
         error == EBADF || error == EPERM || error == ETXTBSY;
}

}  // namespace

class CodeCopier::Hasher {
 public:
  Hasher() : context_(EVP_MD_CTX_new()) {
    if (!context_ || EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) != 1) std::abort();  // no memory
  }
  ~Hasher() { EVP_MD_CTX_free(context_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void SetSilent(bool silent) { silent_ = silent; }  // what is added does not count then
  bool silent() const { return silent_; }
  void Add(absl::string_view bytes) {
    if (silent_) return;
    if (EVP_DigestUpdate(context_, bytes.data(), bytes.size()) != 1) std::abort();
  }
  // Each entry says how long its parts are: no two trees give the same bytes.
  void AddEntry(char kind, mode_t permissions, absl::string_view name, uint64_t size) {
    Add(absl::StrCat(absl::string_view(&kind, 1), " ", absl::Hex(permissions), " ", name.size(), " ", name,
                     " ", size, "\n"));
  }
  std::string Finish() {
    std::array<unsigned char, 32> digest;
    unsigned length = 0;
    if (EVP_DigestFinal_ex(context_, digest.data(), &length) != 1) std::abort();
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
  }

 private:
  EVP_MD_CTX* const context_;
  bool silent_ = false;
};

CodeCopier::CodeCopier(CodeCopyOptions options)
    : options_(std::move(options)), hasher_(std::make_unique<Hasher>()), buffer_(kBufferBytes) {}
CodeCopier::~CodeCopier() = default;

std::string CodeCopier::Digest() { return hasher_->Finish(); }

void CodeCopier::AddToDigest(absl::string_view text) {
  hasher_->AddEntry('+', 0, "", text.size());
  hasher_->Add(text);
}

absl::Status CodeCopier::Survey(const std::string& source) { return Copy(source, -1); }

absl::Status CodeCopier::Copy(const std::string& source, int destination) {
  folder_ = source;
  UniqueFd folder = OpenSource(AT_FDCWD, source, /*follow=*/true);
  if (!folder.valid()) return ReadError(errno, source);
  RK_ASSIGN_OR_RETURN(struct stat info, CheckSource(folder.get(), source));
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is a file: name the folder that it is in"));
  }
  hasher_->AddEntry('R', 0, "", 0);
  return CopyFolder({folder.get(), destination, source, "", 0, 0});
}

absl::Status CodeCopier::CopyFolder(const Level& level) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, NamesIn(level.source, level.path));
  for (const std::string& name : names) RK_RETURN_IF_ERROR(CopyEntry(level, name));
  return absl::OkStatus();
}

absl::Status CodeCopier::Count(uint64_t bytes, const std::string& path) {
  if (options_.cancelled && options_.cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError(absl::StrCat("copying ", folder_, " was cancelled"));
  }
  const uint64_t before = bytes_;
  bytes_ += bytes;
  if (bytes_ + options_.bytes_before > options_.most_bytes) {
    return absl::OutOfRangeError(absl::StrCat("copying ", folder_, ": with ", path,
                                              " code and layers have over ", FormatBytes(options_.most_bytes),
                                              ", the limit: leave out what the function does not need"));
  }
  if (entries_ + options_.entries_before > options_.most_entries) {
    return absl::OutOfRangeError(
        absl::StrCat("copying ", folder_, ": code and layers have over ", options_.most_entries,
                     " files, the limit: leave out what the function does not need"));
  }
  if (before / kProgressBytes != bytes_ / kProgressBytes || entries_ % 256 == 0) {
    if (options_.may_take) RK_RETURN_IF_ERROR(options_.may_take(bytes_));
    if (options_.progress) options_.progress(bytes_);
  }
  return absl::OkStatus();
}

absl::Status CodeCopier::CopyEntry(const Level& level, const std::string& name) {
  const std::string path = absl::StrCat(level.path, "/", name);
  ++entries_;
  RK_RETURN_IF_ERROR(Count(0, path));
  UniqueFd source = OpenSource(level.source, name, /*follow=*/false);
  if (!source.valid()) {
    if (errno == ELOOP) return CopyLink(level, name);
    if (errno == ENXIO) {  // of sockets
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a socket: code is files, folders and links. Remove it from the folder"));
    }
    return ReadError(errno, path);
  }
  RK_ASSIGN_OR_RETURN(struct stat info, CheckSource(source.get(), path));
  if (S_ISDIR(info.st_mode)) return Descend(level, name, std::move(source), /*through_link=*/false);
  return CopyFile(level, name, std::move(source));
}

absl::Status CodeCopier::CopyLink(const Level& level, const std::string& name) {
  const std::string path = absl::StrCat(level.path, "/", name);
  std::string target(PATH_MAX, '\0');
  const ssize_t length = ::readlinkat(level.source, name.c_str(), target.data(), target.size());
  if (length < 0) return ReadError(errno, path);
  target.resize(static_cast<size_t>(length));
  if (!StaysInside(target, level.depth - level.root_depth)) {
    UniqueFd source = OpenSource(level.source, name, /*follow=*/true);
    if (source.valid()) {
      RK_ASSIGN_OR_RETURN(struct stat info, CheckSource(source.get(), path));
      if (S_ISDIR(info.st_mode)) return Descend(level, name, std::move(source), /*through_link=*/true);
      return CopyFile(level, name, std::move(source));
    }
    if (errno != ENOENT && errno != ENOTDIR) return ReadError(errno, path);
  }
  if (level.destination >= 0 && ::symlinkat(target.c_str(), level.destination, name.c_str()) != 0)
    return WriteError(errno, path);
  hasher_->AddEntry('L', 0, absl::StrCat(level.name, name), target.size());
  hasher_->Add(target);
  return absl::OkStatus();
}

absl::Status CodeCopier::Descend(const Level& level, const std::string& name, UniqueFd source,
                                 bool through_link) {
  const std::string path = absl::StrCat(level.path, "/", name);
  if (level.depth + 1 > kMostLevels) {
    return absl::OutOfRangeError(absl::StrCat("copying ", folder_, ": ", path, " is over ", kMostLevels,
                                              " folders deep. Does a link lead to a folder around it?"));
  }
  struct stat info;
  if (::fstat(source.get(), &info) != 0) return ReadError(errno, path);
  const bool counts = !options_.without_compiled || name != kCompiled;
  if (!counts && level.destination < 0) return absl::OkStatus();
  const bool silent = hasher_->silent();
  hasher_->SetSilent(silent || !counts);
  const absl::Cleanup back = [&] { hasher_->SetSilent(silent); };
  UniqueFd destination;
  if (level.destination >= 0) {
    if (::mkdirat(level.destination, name.c_str(), 0700) != 0) return WriteError(errno, path);
    destination.Reset(
        ::openat(level.destination, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!destination.valid()) return WriteError(errno, path);
  }
  const std::string relative = absl::StrCat(level.name, name, "/");
  hasher_->AddEntry('D', SealedMode(info.st_mode), relative, 0);
  RK_RETURN_IF_ERROR(CopyFolder({source.get(), destination.valid() ? destination.get() : -1, path, relative,
                                 through_link ? level.depth + 1 : level.root_depth, level.depth + 1}));
  if (!destination.valid()) return absl::OkStatus();
  // The owner must be able to remove it.
  const timespec times[] = {info.st_atim, info.st_mtim};
  if (::fchmod(destination.get(), (info.st_mode & kPermissions) | 0700) != 0 ||
      ::futimens(destination.get(), times) != 0) {
    return WriteError(errno, path);
  }
  return absl::OkStatus();
}

absl::Status CodeCopier::CopyFile(const Level& level, const std::string& name, UniqueFd source) {
  const std::string path = absl::StrCat(level.path, "/", name);
  struct stat info;
  if (::fstat(source.get(), &info) != 0) return ReadError(errno, path);
  if (level.destination < 0) {
    RK_RETURN_IF_ERROR(Count(static_cast<uint64_t>(info.st_size), path));
    hasher_->AddEntry('F', SealedMode(info.st_mode), absl::StrCat(level.name, name),
                      static_cast<uint64_t>(info.st_size));
    return HashContent(source.get(), static_cast<uint64_t>(info.st_size), path);
  }
  UniqueFd copy(
      ::openat(level.destination, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!copy.valid()) return WriteError(errno, path);
  // Its size may change at any time: this is for an early refusal.
  if (static_cast<uint64_t>(info.st_size) > options_.most_bytes) return Count(info.st_size, path);
  RK_RETURN_IF_ERROR(CopyContent(source.get(), copy.get(), path));
  struct stat made;
  if (::fstat(copy.get(), &made) != 0) return WriteError(errno, path);
  hasher_->AddEntry('F', SealedMode(info.st_mode), absl::StrCat(level.name, name),
                    static_cast<uint64_t>(made.st_size));
  RK_RETURN_IF_ERROR(HashContent(copy.get(), static_cast<uint64_t>(made.st_size), path));
  // Compiled files of Python know their source by its time.
  const timespec times[] = {info.st_atim, info.st_mtim};
  if (::fchmod(copy.get(), info.st_mode & kPermissions) != 0 || ::futimens(copy.get(), times) != 0) {
    return WriteError(errno, path);
  }
  return absl::OkStatus();
}

absl::Status CodeCopier::CopyContent(int source, int destination, const std::string& path) {
  if (::ioctl(destination, FICLONE, source) == 0) {
    struct stat made;
    if (::fstat(destination, &made) != 0) return WriteError(errno, path);
    return Count(static_cast<uint64_t>(made.st_size), path);
  }
  if (errno == ENOSPC || errno == EDQUOT) return WriteError(errno, path);
  bool in_kernel = true;
  for (;;) {
    ssize_t got = 0;
    if (in_kernel) {
      got = ::copy_file_range(source, nullptr, destination, nullptr, kProgressBytes, 0);
      if (got < 0 && CannotShare(errno)) {
        in_kernel = false;
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return WriteError(errno, path);
      // Also said by file systems that can't tell sizes: what is left, if anything, is read.
      if (got == 0) {
        in_kernel = false;
        continue;
      }
    } else {
      got = ::read(source, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ReadError(errno, path);
      if (got == 0) return absl::OkStatus();
      for (ssize_t done = 0; done < got;) {
        const ssize_t n = ::write(destination, buffer_.data() + done, static_cast<size_t>(got - done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return WriteError(errno, path);
        done += n;
      }
    }
    RK_RETURN_IF_ERROR(Count(static_cast<uint64_t>(got), path));
  }
}

absl::Status CodeCopier::HashContent(int file, uint64_t size, const std::string& path) {
  for (uint64_t at = 0; at < size;) {
    const ssize_t got =
        ::pread(file, buffer_.data(), std::min<uint64_t>(buffer_.size(), size - at), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ReadError(got < 0 ? errno : EIO, path);
    hasher_->Add(absl::string_view(buffer_.data(), static_cast<size_t>(got)));
    at += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace rekindle::functions
