// CRIU opens the files of a job as root, by the names that they had. Whoever may change a folder on the way
// can have another file there by then: a link in place of a folder, and the job would get what isn't its
// user's. So before anything of a job runs that isn't root's, each file that it was given is looked at.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Whose job it is, by the image. Nothing: it may have every file, being root's, or is restored without root's
// rights.
absl::StatusOr<std::optional<Owner>> UserWithBounds(const store::ImageReader& image,
                                                    const v1::JobManifest& manifest);

// Whose its processes are, with one of each.
absl::StatusOr<std::map<uid_t, pid_t>> UsersOf(const store::ImageReader& image);

// PermissionDenied: some process is another's, such as that of a set-uid program.
absl::Status CheckAllAreHis(const std::map<uid_t, pid_t>& users, uid_t user);
absl::Status CheckAllAreHis(const store::ImageReader& image, uid_t user);

struct OpenedFilesCheck {
  const v1::JobManifest& manifest;
  const Owner& user;
  std::vector<pid_t> processes;  // the restored ones, by our numbers; they must stand still
  std::string root;        // where the names that the kernel tells us of them begin: "/", "/proc/PID/root"
  std::vector<int> given;  // descriptors of ours that the job was given; not owned
  int64_t began_unix_ns =
      0;  // when CRIU was told to restore it: files without a name born later are its doing
  // CRIU's own, which it writes in each process until it lets go of it; empty: it has none.
  std::string criu_log;
  // Folders where file systems are mounted that are the job's alone: what lies there it may have.
  std::vector<std::string> own_folders = {};
};

// Each descriptor, folder, program and mapping of them must be a file that the image says the job had for as
// much, or one that its user may open so, under the name that it has now. PermissionDenied: one is neither.
// Thread-safe.
absl::Status CheckOpenedFiles(const OpenedFilesCheck& check);

}  // namespace rekindle::restore
