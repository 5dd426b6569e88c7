#include "restore/files_behind_links.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "criu/trusted_links.h"
#include "restore/criu_files.h"

namespace rekindle::restore {

namespace {

absl::Status BehindLink(const std::string& path, absl::string_view had, CheckedFor whom) {
  const UniqueFd leads_to(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const absl::StatusOr<std::string> name = ReadLink(absl::StrCat("/proc/self/fd/", leads_to.get()));
  return absl::PermissionDeniedError(absl::StrCat(
      path, ", ", had, ", ", kUntrustedLink,
      " (another user's, in a folder that others may write to, or one of a loop): the job would go on with ",
      leads_to.valid() && name.ok() ? *name : "something else",
      ". Remove the link and put the file or folder back, then ",
      whom == CheckedFor::kClone ? "clone again. No copy was made"
                                 : "restore again; root, who may know better, restores with "
                                   "--ignore-mismatch. Nothing of the job has run"));
}

}  // namespace

absl::StatusOr<std::set<std::string>> NamesOfRemovedFiles(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(const std::string remaps, ReadCriuFileIfAny(image, "remap-fpath.img"));
  std::set<std::string> names;
  if (remaps.empty()) return names;
  RK_ASSIGN_OR_RETURN(const std::string content, ReadCriuFile(image, "files.img"));
  RK_ASSIGN_OR_RETURN(const std::vector<criu::RegularFile> files, criu::ParseRegularFiles(content, remaps));
  for (const criu::RegularFile& file : files) {
    if (file.ghost) names.insert(file.path);
  }
  return names;
}

absl::Status CheckLinks(const v1::JobManifest& manifest, const std::optional<Owner>& user, SeenFrom place,
                        const std::set<std::string>& replaced, const std::set<std::string>& removed,
                        CheckedFor whom) {
  std::set<std::string> elsewhere;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (file.in_own_mounts() && place == SeenFrom::kMachine) elsewhere.insert(file.path());
  }
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto is_trusted = [&](absl::string_view path) {
    const size_t begin = path.find_first_not_of('/');
    if (begin == absl::string_view::npos || absl::StartsWith(path, "/proc/")) return true;
    const UniqueFd found(OpenByTrustedLinks(root.get(), std::string(path.substr(begin)).c_str(),
                                            O_PATH | O_CLOEXEC, user ? user->uid : ::geteuid()));
    return found.valid() || errno != ELOOP;
  };
  for (const v1::NeededFile& file : manifest.files()) {
    const std::string& path = file.path();
    if (!absl::StartsWith(path, "/") || replaced.contains(path) || elsewhere.contains(path)) continue;
    if (!is_trusted(path)) return BehindLink(path, "which the job had in use", whom);
  }
  if (user) return absl::OkStatus();
  for (const std::string& path : removed) {
    if (!absl::StartsWith(path, "/") || replaced.contains(path) || elsewhere.contains(path)) continue;
    const std::string folder = path.substr(0, path.rfind('/'));
    if (!is_trusted(folder)) return BehindLink(folder, "where the job had a file that was removed", whom);
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
