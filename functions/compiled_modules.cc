#include "functions/compiled_modules.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
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
constexpr size_t kMostCompiledNames = 500'000;
constexpr uint64_t kBytesOfEntry = 4096;  // an empty file takes room as well

class CompiledCopy {
 public:
  explicit CompiledCopy(uint64_t most_bytes) : most_bytes_(most_bytes), buffer_(kCompiledAtOnce) {}

  absl::Status Folder(int from, int to, const std::string& path, int levels) {
    return ForEachName(from, path, [&](const std::string& name) -> absl::Status {
      const std::string entry = absl::StrCat(path, "/", name);
      const UniqueFd below(::openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below.valid() || levels == 0) return absl::OkStatus();
      const bool compiled = name == kCompiledFolder;
      if (compiled && ::mkdirat(to, name.c_str(), 0755) != 0 && errno != EEXIST) return Failed(entry);
      const UniqueFd target(::openat(to, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!target.valid()) return absl::OkStatus();
      if (compiled && ::fchmod(target.get(), 0755) != 0) return Failed(entry);
      return compiled ? Files(below.get(), target.get(), to, entry)
                      : Folder(below.get(), target.get(), entry, levels - 1);
    });
  }

 private:
  static absl::Status Failed(const std::string& path) {
    return ErrnoStatus(errno, absl::StrCat("writing the compiled ", path));
  }

  // As long as it returns OK. A folder that somebody fills meanwhile has no end.
  absl::Status ForEachName(int folder, const std::string& path,
                           absl::FunctionRef<absl::Status(const std::string& name)> use) {
    UniqueFd own(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const std::unique_ptr<DIR, int (*)(DIR*)> names(own.valid() ? ::fdopendir(own.get()) : nullptr,
                                                    &::closedir);
    if (names == nullptr) return ErrnoStatus(errno, absl::StrCat("reading the compiled ", path));
    (void)own.Release();
    while (const dirent* entry = ::readdir(names.get())) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++names_ > kMostCompiledNames) {
        return absl::OutOfRangeError(
            absl::StrCat("there are more than ", kMostCompiledNames, " files beside its compiled modules"));
      }
      RK_RETURN_IF_ERROR(use(name));
    }
    return absl::OkStatus();
  }

  // `sources`: of the layer, for which they may be.
  absl::Status Files(int from, int to, int sources, const std::string& path) {
    return ForEachName(from, path, [&](const std::string& name) -> absl::Status {
      if (!absl::EndsWith(name, kCompiledSuffix)) return absl::OkStatus();
      struct stat info;
      const std::string module = absl::StrCat(name.substr(0, name.find('.')), ".py");
      if (::fstatat(sources, module.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return absl::OkStatus();
      const UniqueFd source(::openat(from, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (!source.valid() || ::fstat(source.get(), &info) != 0 || !S_ISREG(info.st_mode))
        return absl::OkStatus();
      RK_RETURN_IF_ERROR(Take(kBytesOfEntry));
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
      return absl::OkStatus();
    });
  }

  absl::Status Take(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ <= most_bytes_) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat("its compiled modules have more than ", FormatBytes(most_bytes_)));
  }

  absl::Status Content(int from, int to, const std::string& path) {
    for (;;) {
      const ssize_t got = ::read(from, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("reading the compiled ", path));
      if (got == 0) return absl::OkStatus();
      RK_RETURN_IF_ERROR(Take(static_cast<uint64_t>(got)));
      RK_RETURN_IF_ERROR(WriteFully(to, buffer_.data(), static_cast<size_t>(got), path));
    }
  }

  const uint64_t most_bytes_;
  uint64_t bytes_ = 0;
  size_t names_ = 0;
  std::vector<char> buffer_;
};

}  // namespace

absl::Status AddCompiledModules(int compiled, const std::string& layer, uint64_t most_bytes) {
  RK_ASSIGN_OR_RETURN(const UniqueFd target, OpenFile(layer, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return CompiledCopy(most_bytes).Folder(compiled, target.get(), layer, kMostCompiledLevels);
}

}  // namespace rekindle::functions
