// Files that a job appends to without keeping them open, as TensorBoard's writer does: which match the paths
// that the user has named, and how long they are while the job stands still.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/file_rights.h"
#include "ckpt/leases.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// Together, of one image: each costs the freeze some microseconds.
inline constexpr size_t kMostTrackedFiles = 1000;
// That may be looked at for it.
inline constexpr size_t kMostTrackedNames = 20'000;

// Of one capture. Not thread-safe.
//
// Files are looked for with the rights of the job's user, who must learn nothing of folders that are closed
// to him; and on a thread of their own, because a file system that does not answer (a server that has gone,
// or FUSE of the job's own, which stands still) would hold the capture for ever. One that still waits for it
// ends when it answers.
class TrackedFiles {
 public:
  struct Limits {
    absl::Duration ahead = absl::Seconds(30);  // of the look while the job runs
    absl::Duration frozen = absl::Seconds(3);
  };

  // `root`: what leads to the job's root folder ("/", "/proc/PID/root"). `user`: whose files count, and with
  // whose rights they are found; of root: everybody's. `in_own_mounts` as in WrittenFile.
  TrackedFiles(std::vector<std::string> patterns, std::string root, rekindle::Owner user, bool in_own_mounts)
      : TrackedFiles(std::move(patterns), std::move(root), std::move(user), in_own_mounts, Limits()) {}
  TrackedFiles(std::vector<std::string> patterns, std::string root, rekindle::Owner user, bool in_own_mounts,
               Limits limits);

  // While the job runs: reads what may have to come from the disk, so that it is not read in the freeze.
  void LookAhead();

  // While it stands still. The files, without `folder`, each inode once; warnings say what was left out.
  // `leases`: as they were shortly before; files with one are not opened.
  std::vector<v1::WrittenFile> Look(std::shared_ptr<Leases> leases, std::vector<std::string>* warnings);

 private:
  class Search;
  struct Found {
    std::vector<v1::WrittenFile> files;
    std::vector<std::string> warnings;
  };
  struct Work;  // of one look
  // nullopt: not in time.
  std::optional<Found> Find(std::shared_ptr<Leases> leases, absl::Duration patience);

  const std::string root_;
  const Limits limits_;
  const std::shared_ptr<Search> search_;  // null: nothing is tracked
  std::shared_ptr<Work> last_;
};

}  // namespace rekindle::ckpt
