#include "ckpt/lost_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/open_in_root.h"
#include "base/status.h"
#include "ckpt/criu_files.h"
#include "ckpt/extra_names.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

// Those of other dumps, too: they go with CRIU.
constexpr absl::string_view kExtraNames = EXTRA_NAME;
// Of CRIU's image of a file's content, before that.
constexpr size_t kMostHeadBytes = 256;

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

absl::StatusOr<UniqueFd> OpenFolder(const std::string& root, const std::string& folder) {
  RK_ASSIGN_OR_RETURN(const UniqueFd place, OpenInRoot(root, folder));
  return OpenFile(absl::StrCat("/proc/self/fd/", place.get()), O_RDONLY | O_DIRECTORY);
}

// The names in one folder, by the files that they lead to. Thousands of lost names may be of one folder, with
// many more that are not lost, while the job stands still: it is read once.
class FolderNames {
 public:
  FolderNames(const std::string& root, std::string folder) : folder_(std::move(folder)) {
    absl::StatusOr<UniqueFd> opened = OpenFolder(root, folder_);
    if (!opened.ok()) return;
    opened_.reset(::fdopendir(opened->get()));
    if (opened_) opened->Release();
    while (const dirent* entry = opened_ ? ::readdir(opened_.get()) : nullptr) {
      const absl::string_view name = entry->d_name;
      if (absl::StartsWith(name, kExtraNames)) continue;
      by_inode_.emplace_back(entry->d_ino, text_.size());
      text_.append(name.data(), name.size() + 1);  // with the zero at its end
    }
    std::sort(by_inode_.begin(), by_inode_.end());
  }

  const std::string& folder() const { return folder_; }

  // The first by the alphabet; empty: there is none.
  std::string NameOf(const struct stat& file) const {
    absl::string_view found;
    auto at = std::lower_bound(by_inode_.begin(), by_inode_.end(), std::pair(file.st_ino, size_t{0}));
    for (; at != by_inode_.end() && at->first == file.st_ino; ++at) {
      const char* name = text_.data() + at->second;
      struct stat info;
      if (::fstatat(::dirfd(opened_.get()), name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
          info.st_ino != file.st_ino || info.st_dev != file.st_dev) {
        continue;
      }
      if (found.empty() || name < found) found = name;
    }
    return std::string(found);
  }

 private:
  const std::string folder_;
  std::unique_ptr<DIR, int (*)(DIR*)> opened_{nullptr, ::closedir};
  std::string text_;
  std::vector<std::pair<ino_t, size_t>> by_inode_;  // where in the text the name begins
};

// Is it "/proc/PID/fd/N"?
bool IsDescriptor(absl::string_view target) {
  const std::vector<absl::string_view> parts = absl::StrSplit(target, '/');
  uint32_t number = 0;
  return parts.size() == 5 && parts[0].empty() && parts[1] == "proc" && absl::SimpleAtoi(parts[2], &number) &&
         parts[3] == "fd" && absl::SimpleAtoi(parts[4], &number);
}

// Where the symbolic link leads to, and what is there.
absl::StatusOr<std::string> SourceOf(int link, const std::string& path, const std::string& root,
                                     struct stat* info) {
  char target[PATH_MAX] = {};
  if (::readlinkat(link, "", target, sizeof target - 1) < 0) {
    return ErrnoStatus(errno, absl::StrCat("reading ", path));
  }
  if (!IsDescriptor(target)) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not the link that CRIU was given, but leads to ", target,
                     ": somebody has put it there; take the checkpoint again"));
  }
  const std::string source = root + target;
  if (::stat(source.c_str(), info) != 0 || !S_ISREG(info->st_mode)) {
    return ErrnoStatus(errno, absl::StrCat("looking at shared memory without a name by ", source));
  }
  return source;
}

void RemoveName(const std::string& root, const std::string& path) {
  const std::string folder = FolderOf(path);
  const absl::StatusOr<UniqueFd> place = OpenInRoot(root, folder);
  if (place.ok()) ::unlinkat(place->get(), path.substr(folder.size()).c_str(), 0);
}

// All `size` bytes of it. Others may have the file, too, and write to it while the job stands still.
absl::StatusOr<std::string> ReadContent(int file, size_t size, const std::string& name) {
  std::string content;
  content.reserve(size + kMostHeadBytes);
  content.resize(size);
  size_t used = 0;
  char more;
  for (;;) {
    const ssize_t n = used < size ? ::read(file, content.data() + used, size - used) : ::read(file, &more, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", name));
    if (n == 0) break;
    if (used == size) {
      return absl::AbortedError(absl::StrCat(
          "the job has ", name,
          " open or mapped, whose name has been removed, and another process makes the file longer while its "
          "content is copied into the image; end that, then take the checkpoint again"));
    }
    used += static_cast<size_t>(n);
  }
  content.resize(used);
  return content;
}

}  // namespace

absl::StatusOr<LostNames> LookAtLostNames(const std::map<std::string, std::string>& criu_files,
                                          const std::string& run, const std::string& root,
                                          const std::string& job, uint64_t content_limit_bytes,
                                          ReadableFiles* readable) {
  LostNames names;
  RK_ASSIGN_OR_RETURN(
      std::vector<criu::ExtraLink> links,
      criu::FindExtraLinks(ContentOf(criu_files, "files.img"), ContentOf(criu_files, "remap-fpath.img")));
  std::stable_sort(links.begin(), links.end(), [](const criu::ExtraLink& a, const criu::ExtraLink& b) {
    return FolderOf(a.path) < FolderOf(b.path);
  });
  std::optional<FolderNames> folder;  // of the last one
  uint64_t left = content_limit_bytes;
  for (const criu::ExtraLink& link : links) {
    std::string on_disk = absl::StrCat(link.path, ".", run);
    absl::StatusOr<UniqueFd> place = OpenInRoot(root, on_disk);
    // A static CRIU, into which extra_names.c can't be loaded.
    if (absl::IsNotFound(place.status())) place = OpenInRoot(root, on_disk = link.path);
    struct stat info;
    if (!place.ok()) return Annotate(place.status(), "looking at a name that CRIU has made");
    if (::fstat(place->get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", on_disk));
    criu::LinkReplacement& replacement = names.by_link[link.path];
    names.on_disk.push_back(on_disk);
    if (S_ISLNK(info.st_mode)) {  // by ckpt/nameless_memory.c
      RK_ASSIGN_OR_RETURN(const std::string source, SourceOf(place->get(), on_disk, root, &info));
      replacement.name = absl::StrCat(v1::kNamelessPrefix, job, ".", info.st_ino);
      names.nameless[replacement.name] = source;
      continue;
    }
    if (!folder || folder->folder() != FolderOf(link.path)) folder.emplace(root, FolderOf(link.path));
    if (const std::string other = folder->NameOf(info); !other.empty()) {
      replacement.name = FolderOf(link.path) + other;
      continue;
    }
    if (static_cast<uint64_t>(info.st_size) > left) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the job has ", link.lost_name, " open or mapped, whose name has been removed; its content (",
          FormatBytes(static_cast<uint64_t>(info.st_size)), ") would have to go into the image, which takes ",
          FormatBytes(content_limit_bytes),
          " of such files. Give the file a name in its folder again, or let the job close it"));
    }
    left -= static_cast<uint64_t>(info.st_size);
    if (!readable->Has(info)) {
      return absl::PermissionDeniedError(absl::StrCat(
          "the job has ", link.lost_name,
          " open or mapped, whose name has been removed; its content would have to go into the "
          "image, and neither can the job read it nor does it own it. Give the file a name in its "
          "folder again, or take the checkpoint as root"));
    }
    RK_ASSIGN_OR_RETURN(const UniqueFd file, OpenFileAt(place->get()));
    RK_ASSIGN_OR_RETURN(replacement.content,
                        ReadContent(file.get(), static_cast<size_t>(info.st_size), link.lost_name));
    replacement.uid = info.st_uid;
    replacement.gid = info.st_gid;
    replacement.mode = info.st_mode;
    if (link.written) {
      names.warnings.push_back(absl::StrCat(
          link.lost_name,
          ", which the job writes, has lost that name and has none in the same folder; the restored job "
          "gets a copy of it, apart from the file's other names"));
    }
  }
  return names;
}

LostNames LostNames::WithoutContents() const {
  LostNames names;
  for (const auto& [path, file] : by_link)
    names.by_link[path] = {file.name, "", file.uid, file.gid, file.mode};
  names.on_disk = on_disk;
  names.nameless = nameless;
  names.warnings = warnings;
  return names;
}

absl::Status PutIntoImages(LostNames names, std::map<std::string, std::string>* criu_files) {
  RK_ASSIGN_OR_RETURN(
      const std::vector<criu::ExtraLink> links,
      criu::FindExtraLinks(ContentOf(*criu_files, "files.img"), ContentOf(*criu_files, "remap-fpath.img")));
  for (const criu::ExtraLink& link : links) {
    if (names.by_link.contains(link.path)) continue;
    return absl::AbortedError(
        absl::StrCat("the job has ", link.lost_name,
                     " open or mapped, whose name has been removed, and CRIU's images did not say so in time "
                     "to find another; take the checkpoint again"));
  }
  return criu::ReplaceExtraLinks(std::move(names.by_link), criu_files);
}

void RemoveExtraNames(const LostNames& names, const std::string& root) {
  for (const std::string& path : names.on_disk) RemoveName(root, path);
}

void RemoveLeftExtraNames(const std::string& work_directory, const std::string& run, pid_t process) {
  const absl::StatusOr<std::string> list = ReadFile(absl::StrCat(work_directory, "/", EXTRA_NAMES_LIST));
  if (!list.ok() || run.empty()) return;
  const std::string roots[] = {absl::StrCat("/proc/", process, "/root"), "/"};
  const bool is_there = process > 0 && ::access(roots[0].c_str(), F_OK) == 0;
  const std::string& root = roots[is_there ? 0 : 1];
  for (absl::string_view line : absl::StrSplit(*list, '\n', absl::SkipEmpty())) {
    while (absl::ConsumePrefix(&line, "/") || absl::ConsumePrefix(&line, "./")) {
    }
    const std::string path = absl::StrCat("/", line);
    if (absl::StartsWith(path.substr(FolderOf(path).size()), kExtraNames) && absl::EndsWith(path, run))
      RemoveName(root, path);
  }
}

}  // namespace rekindle::ckpt
