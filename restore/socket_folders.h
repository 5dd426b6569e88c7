// Folders in which a job had Unix sockets, and which are gone: CRIU binds the sockets to their names again,
// so these are made before it does. Python's multiprocessing, say, has one for each process, and removes it
// with that.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// Owned by one thread at a time. Destroying it removes the folders that were made, unless they are to be
// kept.
class SocketFolders {
 public:
  // Who has the job's names: the job that comes back alone, so that sockets in what was made for it are its
  // own, or other copies of it as well.
  enum class Names { kOfOneJob, kOfCopies };

  SocketFolders() = default;  // none
  SocketFolders(SocketFolders&&) = default;
  SocketFolders& operator=(SocketFolders&& other) noexcept;
  ~SocketFolders();

  // Makes those that are missing where `root` is the root folder, with the rights of `user`, nothing: our
  // own, and with the owner, group and mode that they had as far as these rights allow it. What is there
  // already is left as it is. FailedPrecondition, PermissionDenied, ResourceExhausted: one can't be made, or
  // may lie on a file system that is not mounted now, or is another user's now, where anybody may make
  // folders; then none is left. The message names it and what to do.
  static absl::StatusOr<SocketFolders> Make(const v1::JobManifest& manifest, const std::string& root,
                                            const std::optional<Owner>& user, Names names);

  bool empty() const { return made_.empty(); }
  // Once the sockets have their names: those that the job did not have any more when its image was taken go
  // again, unless other copies may be about to need them.
  void RemovePassing();
  // The job has them now.
  void Keep() { made_.clear(); }

 private:
  struct Made {
    std::shared_ptr<const UniqueFd> above;
    std::string name;
    bool passing = false;
  };
  friend class SocketFolderMaker;
  void Remove(const std::vector<Made>& folders) const;

  std::optional<Owner> user_;
  Names names_ = Names::kOfOneJob;
  std::vector<Made> made_;  // those above first
};

}  // namespace rekindle::restore
