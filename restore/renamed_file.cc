#include "restore/renamed_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/open_in_root.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

constexpr int kMostNamesLookedAt = 100'000;
// A call does not come to an end before all of it is copied, whatever signal arrives.
constexpr size_t kCopiedAtATime = size_t{64} << 20;

struct CloseFolderOfNames {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

bool IsOfOtherFileSystems(int error) {
  return error == EXDEV || error == EOPNOTSUPP || error == EINVAL || error == ENOSYS;
}

}  // namespace

RenamedFile FindRenamed(int folder,
                        const std::function<bool(const std::string& name, const struct stat& info)>& is_it) {
  RenamedFile found;
  UniqueFd reading(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!reading.valid()) return found;
  const std::unique_ptr<DIR, CloseFolderOfNames> names(::fdopendir(reading.get()));
  if (names == nullptr) return found;
  (void)reading.Release();
  int looked_at = 0;
  while (const dirent* entry = ::readdir(names.get())) {
    if (++looked_at > kMostNamesLookedAt) break;
    const std::string name = entry->d_name;
    struct stat info;
    // What a roll-back keeps beside a file is no later version of it.
    if (absl::StrContains(name, ".rekindle-") ||
        ::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode) ||
        !is_it(name, info))
      continue;
    const UniqueFd named(::openat(folder, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat opened;
    if (!named.valid() || ::fstat(named.get(), &opened) != 0 || opened.st_ino != info.st_ino) continue;
    found.file = Reopen(named.get(), O_RDONLY | O_NOCTTY);
    if (!found.found()) continue;
    found.name = name;
    return found;
  }
  return found;
}

absl::Status CopyBeginning(int from, int to, uint64_t bytes) {
  bool in_kernel = true;
  for (uint64_t at = 0; at < bytes;) {
    const size_t wanted = std::min<uint64_t>(bytes - at, kCopiedAtATime);
    auto offset = static_cast<off_t>(at);
    const ssize_t copied = in_kernel ? ::copy_file_range(from, &offset, to, nullptr, wanted, 0)
                                     : ::sendfile(to, from, &offset, wanted);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0 && in_kernel && IsOfOtherFileSystems(errno)) {
      in_kernel = false;
      continue;
    }
    if (copied < 0) return ErrnoStatus(errno, "copying what it has under its present name");
    if (copied == 0) return absl::DataLossError("it has become shorter under its present name");
    at += static_cast<uint64_t>(copied);
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
