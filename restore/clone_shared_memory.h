// Shared memory with a name (/dev/shm) of a job that copies are started of. Each copy has a /dev/shm of its
// own, with what the image has of it: else copies would work in one another's memory.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Has it a name for the time of a restore only? False for a path that no restore makes.
bool IsNamelessMemory(const v1::WrittenFile& file);

// Thread-safe once read.
class CloneSharedMemory {
 public:
  // Reads all of it into memory. FailedPrecondition: the image has not got all of it. ResourceExhausted: it
  // is more than what is free.
  static absl::StatusOr<CloneSharedMemory> Read(const store::ImageReader& image,
                                                const v1::JobManifest& manifest);

  bool empty() const { return files_.empty(); }
  uint64_t bytes() const { return bytes_; }  // of memory
  // Where its files are for the job.
  std::set<std::string> paths() const;

  // `root`: the copy's root folder as we see it. Its /dev/shm must be its own, with none of them.
  absl::Status MakeIn(const std::string& root) const;
  // Once the copy has all of it open: what had no name has none again.
  void RemoveNameless(const std::string& root) const;

 private:
  struct File {
    v1::WrittenFile record;
    UniqueFd content;  // a memfd
  };
  std::vector<File> files_;
  uint64_t bytes_ = 0;
};

}  // namespace rekindle::restore
