#include "restore/files_behind_links.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/open_in_root.h"
#include "criu/trusted_links.h"

namespace rekindle::restore {

absl::Status CheckLinks(const v1::JobManifest& manifest, const std::optional<Owner>& user, SeenFrom place,
                        const std::set<std::string>& replaced) {
  std::set<std::string> elsewhere;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (file.in_own_mounts() && place == SeenFrom::kMachine) elsewhere.insert(file.path());
  }
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (const v1::NeededFile& file : manifest.files()) {
    const std::string& path = file.path();
    if (!absl::StartsWith(path, "/") || absl::StartsWith(path, "/proc/")) continue;
    if (replaced.contains(path) || elsewhere.contains(path)) continue;
    const UniqueFd found(OpenByTrustedLinks(root.get(), path.c_str() + path.find_first_not_of('/'),
                                            O_PATH | O_CLOEXEC, user ? user->uid : ::geteuid()));
    if (found.valid() || errno != ELOOP) continue;
    const UniqueFd leads_to(::open(path.c_str(), O_PATH | O_CLOEXEC));
    const absl::StatusOr<std::string> name = ReadLink(absl::StrCat("/proc/self/fd/", leads_to.get()));
    return absl::PermissionDeniedError(absl::StrCat(
        path,
        ", which the job had in use, is reached by a symbolic link now that another user has made, or may "
        "change: the job would go on with ",
        leads_to.valid() && name.ok() ? *name : "something else",
        ". Remove the link and put the file or folder back, then restore again; root, who may know better, "
        "restores with --ignore-mismatch. Nothing of the job has run"));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::restore
