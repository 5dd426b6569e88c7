// What is loaded into a CRIU that restores: rekindle-criu-restore.so. With it, what CRIU makes, removes and
// gives away by name for a job that isn't root's it does with the rights of the job's user (user_bounds.c),
// and a job has all POSIX locks that it had (kept_locks.c).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"

namespace rekindle::criu {

// "K=V" for that CRIU. It keeps to what is in `bounds_file` when it is told what to restore; no such file,
// or an empty path: the job is root's. NotFound: the installation is not complete.
absl::StatusOr<std::vector<std::string>> RestoreVariables(const std::string& bounds_file);

// Of the CRIU that `criu_pidfd` is of and that has begun: is that library in it? FailedPrecondition: CRIU is
// linked statically, or lost LD_PRELOAD on the way.
absl::Status CheckPreloaded(int criu_pidfd);

// `placed_sockets`: names of Unix sockets that root may bind for that user, and remove if they are his.
// `own_folders`: where file systems are mounted that are the copy's alone, in which CRIU is root; no spaces.
absl::Status WriteBounds(const std::string& bounds_file, const Owner& user,
                         const std::vector<std::string>& placed_sockets,
                         const std::vector<std::string>& own_folders = {});

inline constexpr char kBoundsFile[] = "user-bounds";

}  // namespace rekindle::criu
