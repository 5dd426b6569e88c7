#include "base/file_patterns.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <climits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/follow_in_root.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

constexpr absl::string_view kAnyFolders = "**";
constexpr absl::string_view kOurs = ".rekindle-";
// Deeper than any tree of a training's, and each takes a descriptor.
constexpr int kDeepest = 40;

bool IsMadeUp(absl::string_view path) {
  for (absl::string_view folder : {"/proc", "/sys", "/dev"}) {
    absl::string_view rest = path;
    if (absl::ConsumePrefix(&rest, folder) && (rest.empty() || rest[0] == '/')) return true;
  }
  return false;
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// One pattern's search.
class Search {
 public:
  Search(int root, size_t* names_left, absl::FunctionRef<bool(const MatchingFile&)> visit)
      : root_(root), names_left_(names_left), visit_(visit) {}

  // False: it was ended.
  bool Run(const std::string& pattern) {
    parts_.clear();
    for (absl::string_view part : absl::StrSplit(pattern, '/', absl::SkipEmpty())) {
      if (part != "." && (part != kAnyFolders || parts_.empty() || parts_.back() != kAnyFolders))
        parts_.emplace_back(part);
    }
    // Names may hold what else is a wildcard.
    if (const std::string path = PathOf(parts_.size()); IsThere(path)) return VisitPath(path);
    size_t first = 0;
    while (first < parts_.size() && parts_[first].find_first_of("*?[\\") == std::string::npos) ++first;
    if (first == parts_.size()) return true;
    const std::string begin = PathOf(first);
    const UniqueFd folder = FollowInRoot(root_, begin, O_DIRECTORY);
    return !folder.valid() || Match(folder.get(), ".", begin == "/" ? "" : begin, first, 0);
  }

 private:
  std::string PathOf(size_t parts) const {
    std::string path;
    for (size_t i = 0; i < parts; ++i) absl::StrAppend(&path, "/", parts_[i]);
    return path.empty() ? "/" : path;
  }
  bool IsThere(const std::string& path) const { return FollowInRoot(root_, path, O_NOFOLLOW).valid(); }

  bool VisitPath(const std::string& path) {
    if (const UniqueFd folder = FollowInRoot(root_, path, O_DIRECTORY); folder.valid())
      return Match(folder.get(), ".", path == "/" ? "" : path, parts_.size(), 0);
    const size_t slash = path.rfind('/');
    const UniqueFd folder = FollowInRoot(root_, slash == 0 ? "/" : path.substr(0, slash), O_DIRECTORY);
    const std::string name = path.substr(slash + 1);
    struct stat info;
    if (!folder.valid() || ::fstatat(folder.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      return true;
    return VisitOne(folder.get(), name, path, info);
  }

  bool VisitOne(int folder, const std::string& name, const std::string& path, const struct stat& info) {
    if (!S_ISREG(info.st_mode) || absl::StrContains(name, kOurs)) return true;
    return visit_({path, folder, name, info});
  }

  // Of what is in the folder `name` in `at`, called `path`, by the parts from `part` on; all of it behind the
  // last.
  bool Match(int at, const char* name, const std::string& path, size_t part, int depth) {
    if (depth > kDeepest || IsMadeUp(path)) return true;
    const UniqueFd reading(::openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!reading.valid()) return true;
    const int copy = ::fcntl(reading.get(), F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return true;
    const std::unique_ptr<DIR, CloseFolder> folder(::fdopendir(copy));
    if (folder == nullptr) {
      ::close(copy);
      return true;
    }
    const bool any_folders = part < parts_.size() && parts_[part] == kAnyFolders;
    // Behind it: what lies in this folder itself.
    const size_t here = any_folders ? part + 1 : part;
    while (const dirent* entry = ::readdir(folder.get())) {
      const std::string entry_name = entry->d_name;
      if (entry_name == "." || entry_name == "..") continue;
      if ((*names_left_)-- == 0) {
        *names_left_ = 0;
        return false;
      }
      const bool matches =
          here >= parts_.size() || (parts_[here] != kAnyFolders &&
                                    ::fnmatch(parts_[here].c_str(), entry_name.c_str(), FNM_PERIOD) == 0);
      if (!matches && !any_folders) continue;
      if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_REG && entry->d_type != DT_DIR) continue;
      if (!matches && entry->d_type == DT_REG) continue;
      if (!VisitEntry(reading.get(), entry_name, absl::StrCat(path, "/", entry_name), matches, here,
                      any_folders, depth))
        return false;
    }
    return true;
  }

  bool VisitEntry(int folder, const std::string& name, const std::string& path, bool matches, size_t here,
                  bool any_folders, int depth) {
    struct stat info;
    if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return true;
    if (!S_ISDIR(info.st_mode)) {
      return !matches || here + 1 < parts_.size() || VisitOne(folder, name, path, info);
    }
    if (absl::StrContains(name, kOurs)) return true;
    const bool below_all = here >= parts_.size();
    if (matches && !Match(folder, name.c_str(), path, below_all ? here : here + 1, depth + 1)) return false;
    // Not those that are hidden, as with * in a shell.
    return !any_folders || below_all || name[0] == '.' ||
           Match(folder, name.c_str(), path, here - 1, depth + 1);
  }

  const int root_;
  size_t* const names_left_;
  const absl::FunctionRef<bool(const MatchingFile&)> visit_;
  std::vector<std::string> parts_;
};

}  // namespace

absl::Status CheckFilePattern(absl::string_view pattern) {
  if (!absl::StartsWith(pattern, "/") || pattern.size() >= PATH_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path to track '", pattern.substr(0, 200),
        "' is not absolute, or too long: write it from / on, with less than ", PATH_MAX, " bytes"));
  }
  if (!IsMadeUp(pattern)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the path to track '", pattern, "' is none of a disk: files in /proc, /sys and /dev can't be"));
}

absl::Status CheckFilePatterns(size_t count) {
  constexpr size_t kMost = 64;
  if (count <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(count, " paths to track are more than the ", kMost,
                                                 " that can be: name folders or patterns"));
}

bool VisitMatchingFiles(int root, const std::vector<std::string>& patterns, size_t most_names,
                        absl::FunctionRef<bool(const MatchingFile&)> visit) {
  Search search(root, &most_names, visit);
  for (const std::string& pattern : patterns) {
    if (!search.Run(pattern)) return false;
  }
  return true;
}

}  // namespace rekindle
