#include "functions/compiled_modules.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::functions {
namespace {

constexpr absl::string_view kCompiledFolder = "__pycache__", kCompiledSuffix = ".pyc";
constexpr size_t kCompiledAtOnce = size_t{64} << 10;
constexpr int kMostCompiledLevels = 64;

class CompiledCopy {
 public:
  explicit CompiledCopy(uint64_t most_bytes) : most_bytes_(most_bytes), buffer_(kCompiledAtOnce) {}

  absl::Status Folder(int from, int to, const std::string& path, int levels) {
    RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        ListDirectory(absl::StrCat("/proc/self/fd/", from)));
    for (const std::string& name : names) {
      const std::string entry = absl::StrCat(path, "/", name);
      const UniqueFd below(::openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below.valid() || levels == 0) continue;
      const bool compiled = name == kCompiledFolder;
      if (compiled && ::mkdirat(to, name.c_str(), 0755) != 0 && errno != EEXIST) return Failed(entry);
      const UniqueFd target(::openat(to, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!target.valid()) continue;
      if (compiled && ::fchmod(target.get(), 0755) != 0) return Failed(entry);
      RK_RETURN_IF_ERROR(compiled ? Files(below.get(), target.get(), entry)
                                  : Folder(below.get(), target.get(), entry, levels - 1));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Failed(const std::string& path) {
    absl::Status status = ErrnoStatus(errno, absl::StrCat("writing the compiled ", path));
    if (errno != ENOSPC && errno != EDQUOT) return status;
    return absl::ResourceExhaustedError(status.message());
  }

  absl::Status Files(int from, int to, const std::string& path) {
    RK_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        ListDirectory(absl::StrCat("/proc/self/fd/", from)));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, kCompiledSuffix)) continue;
      const UniqueFd source(::openat(from, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      struct stat info;
      if (!source.valid() || ::fstat(source.get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      const std::string entry = absl::StrCat(path, "/", name);
      if (::unlinkat(to, name.c_str(), 0) != 0 && errno != ENOENT) return Failed(entry);
      const UniqueFd copy(
          ::openat(to, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (!copy.valid()) return Failed(entry);
      absl::Status status = Content(source.get(), copy.get(), entry);
      if (status.ok() && ::fchmod(copy.get(), 0644) != 0) status = Failed(entry);
      if (!status.ok()) {
        ::unlinkat(to, name.c_str(), 0);
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Content(int from, int to, const std::string& path) {
    for (;;) {
      const ssize_t got = ::read(from, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading the compiled ", path));
      if (got == 0) return absl::OkStatus();
      bytes_ += static_cast<uint64_t>(got);
      if (bytes_ > most_bytes_) {
        return absl::OutOfRangeError(
            absl::StrCat("its compiled modules have more than ", FormatBytes(most_bytes_)));
      }
      RK_RETURN_IF_ERROR(WriteFully(to, buffer_.data(), static_cast<size_t>(got), path));
    }
  }

  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;
  std::vector<char> buffer_;
};

}  // namespace

absl::Status AddCompiledModules(int compiled, const std::string& layer, uint64_t most_bytes) {
  RK_ASSIGN_OR_RETURN(const UniqueFd target, OpenFile(layer, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return CompiledCopy(most_bytes).Folder(compiled, target.get(), layer, kMostCompiledLevels);
}

}  // namespace rekindle::functions
