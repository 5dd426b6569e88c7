// Files that a job appends to without keeping them open, as TensorBoard's writer does: which match the paths
// that the user has named, and how long they are while the job stands still.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/opened_files.h"
#include "ckpt/leases.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// Together, of one image: each costs the freeze some microseconds.
inline constexpr size_t kMostTrackedFiles = 1000;
// That may be looked at for it.
inline constexpr size_t kMostTrackedNames = 20'000;

// Of one capture. Not thread-safe.
class TrackedFiles {
 public:
  // `root`: what leads to the job's root folder ("/", "/proc/PID/root"). `user`: whose files count; 0:
  // everybody's. `in_own_mounts` as in WrittenFile.
  TrackedFiles(std::vector<std::string> patterns, std::string root, uid_t user, bool in_own_mounts)
      : patterns_(std::move(patterns)), root_(std::move(root)), user_(user), in_own_mounts_(in_own_mounts) {}

  // While the job runs: reads what may have to come from the disk, so that it is not read in the freeze.
  void LookAhead();

  // While it stands still. The files, without `folder`, each inode once; warnings say what was left out.
  // `leases`: as they were shortly before; files with one are not opened.
  std::vector<v1::WrittenFile> Look(Leases& leases, std::vector<std::string>* warnings);

 private:
  struct Known {
    uint64_t size = 0;
    int64_t modified_ns = 0;
    uint64_t ending = 0;
  };
  std::vector<v1::WrittenFile> Find(Leases& leases, std::vector<std::string>* warnings);

  const std::vector<std::string> patterns_;
  const std::string root_;
  const uid_t user_;
  const bool in_own_mounts_;
  std::map<InodeIdentity, Known> known_;
};

}  // namespace rekindle::ckpt
