#include "restore/rotated_log.h"

#include <dirent.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "restore/discarded_tail.h"

namespace rekindle::restore {
namespace {

// More backups than anybody keeps.
constexpr int kMostBackups = 1000, kMostNamesInFolder = 100'000, kAsideNamesTried = 1000;

bool IsFileIn(int folder, const std::string& name, struct stat* info) {
  return ::fstatat(folder, name.c_str(), info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info->st_mode);
}

// The error. Replaces nothing; some file systems can't be asked for that.
int RenameToFreeName(int folder, const std::string& from, const std::string& to) {
  if (::renameat2(folder, from.c_str(), folder, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL) return errno;
  struct stat info;
  if (::fstatat(folder, to.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return ::renameat(folder, from.c_str(), folder, to.c_str()) == 0 ? 0 : errno;
}

struct CloseLogFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

RotatedNames FindRotated(
    int folder, const std::string& log,
    const std::function<bool(const std::string& name, const struct stat& info)>& is_log) {
  RotatedNames found;
  found.log = log;
  UniqueFd reading(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!reading.valid()) return found;
  const std::unique_ptr<DIR, CloseLogFolder> names(::fdopendir(reading.get()));
  if (names == nullptr) return found;
  (void)reading.Release();
  const std::string begins = absl::StrCat(log, ".");
  struct stat info;
  int looked_at = 0;
  while (const dirent* entry = ::readdir(names.get())) {
    if (++looked_at > kMostNamesInFolder) break;
    const std::string name = entry->d_name;
    if (!absl::StartsWith(name, begins) || absl::StrContains(name, ".rekindle-")) continue;
    if (IsFileIn(folder, name, &info) && is_log(name, info)) found.name = name;
  }
  if (!found.found()) return found;
  if (IsFileIn(folder, log, &info)) found.newer.push_back(log);
  int times = 0;  // that it was rotated, where the backups are numbered
  if (!absl::SimpleAtoi(found.name.substr(begins.size()), &times) || times < 1 || times > kMostBackups ||
      found.name != absl::StrCat(begins, times))
    return found;
  for (int number = 1; number < times; ++number) {
    if (const std::string name = absl::StrCat(begins, number); IsFileIn(folder, name, &info))
      found.newer.push_back(name);
  }
  for (int number = times + 1; number <= kMostBackups; ++number) {
    const std::string name = absl::StrCat(begins, number);
    if (!IsFileIn(folder, name, &info)) break;
    found.older.emplace_back(name, absl::StrCat(begins, number - times));
  }
  return found;
}

absl::Status RotateBack(int folder, const RotatedNames& names, absl::Time now,
                        std::vector<std::string>* kept) {
  for (const std::string& name : names.newer) {
    const std::string planned = TailName(name, now);
    std::string aside = planned;
    int error = EEXIST;
    for (int number = 2; error == EEXIST && number < kAsideNamesTried; ++number) {
      error = RenameToFreeName(folder, name, aside);
      if (error == EEXIST) aside = absl::StrCat(planned, "-", number);
    }
    if (error != 0) return ErrnoStatus(error, absl::StrCat("keeping ", name, " as ", aside));
    kept->push_back(aside);
  }
  const auto rename = [folder](const std::string& from, const std::string& to) {
    const int error = RenameToFreeName(folder, from, to);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("renaming ", from, " to ", to));
  };
  RK_RETURN_IF_ERROR(rename(names.name, names.log));
  for (const auto& [is_now, was] : names.older) RK_RETURN_IF_ERROR(rename(is_now, was));
  return absl::OkStatus();
}

}  // namespace rekindle::restore
