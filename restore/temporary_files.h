// What a copy has for its own in place of the machine's folders for temporary files: a /tmp and a /var/tmp,
// a /dev/shm, and in them what its image has of such folders (ckpt/temporary_files.h). All of it is there
// before CRIU opens anything: in the machine's folders it would find what others have put there, and leave
// the contents of deleted files where all can see them.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_rights.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/own_temporary.h"
#include "restore/sandbox.h"

namespace rekindle::restore {

// Of one image. Thread-safe once read.
class TemporaryFiles {
 public:
  // Null: copies of this image have the machine's folders. `kept`: folders in these that stay the machine's.
  // DataLoss.
  static absl::StatusOr<std::shared_ptr<const TemporaryFiles>> Read(const store::ImageReader& image,
                                                                    const v1::JobManifest& manifest,
                                                                    std::vector<std::string> kept);

  // Of memory: what the contents take here, and what all takes in a copy.
  uint64_t bytes() const { return contents_.size(); }
  uint64_t bytes_in_copy() const { return bytes_in_copy_; }
  // Would that be a copy's own?
  bool Has(const std::string& path) const;

  // `root`: the copy's root folder as we see it, in which nothing runs yet. The folders must be its own.
  absl::Status MakeIn(const std::string& root) const;
  // Gives those of root's to who the copy becomes before it runs on: had he loaded it, they were his.
  absl::Status GiveTo(const Owner& owner, const std::string& root) const;

 private:
  v1::TemporaryFiles record_;
  std::string contents_;
  uint64_t bytes_in_copy_ = 0;
  std::vector<std::string> kept_;
};

// Of one copy in a sandbox.
struct OwnPlaces {
  OwnTemporary temporary;                       // with 0 bytes: the machine's
  std::shared_ptr<const TemporaryFiles> files;  // null: none

  bool any() const { return temporary.bytes > 0 || temporary.shared_memory > 0; }
  // Makes the folders, empty, if there are to be any; the sandbox gets its host name by the way. Of a
  // /dev/shm `needed` stays the machine's, too.
  absl::Status MakeFolders(Sandbox& sandbox, const std::string& host_name,
                           const std::vector<std::string>& needed) const;
  absl::Status MakeFiles(const Sandbox& sandbox) const;
  absl::Status GiveFilesTo(const Owner& owner, const Sandbox& sandbox) const;
  // Where they are mounted.
  std::vector<std::string> folders() const;
};

}  // namespace rekindle::restore
