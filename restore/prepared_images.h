// What copies of an image need that is made once: kept in memory as long as images are used.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_rights.h"
#include "base/timeline.h"
#include "criu/image_files.h"
#include "criu/installation.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/bound_paths.h"
#include "restore/clone_shared_memory.h"
#include "restore/file_identities.h"
#include "restore/image_directory.h"
#include "restore/kept_by_use.h"
#include "restore/lock_check.h"
#include "restore/temporary_files.h"
#include "restore/touched_files.h"

namespace rekindle::restore {

// What every restore of one image needs, made once. Where binds lie over files that it needs, every one with
// them has its own, which shares with the others what takes memory and time.
struct PreparedImage {
  // Of the image alone.
  store::ImageInfo info;
  v1::JobManifest manifest;
  // Its copies may wait before they run: they are told when that is, and no timer of theirs runs meanwhile.
  bool may_stand_by = false;
  bool listens = false;          // on TCP ports or Unix sockets
  std::optional<Owner> user;     // see UserWithBounds
  std::map<uid_t, pid_t> users;  // see UsersOf
  std::vector<JobLock> locks_of_image;
  std::shared_ptr<const std::vector<criu::RegularFile>> files;
  std::shared_ptr<const CloneSharedMemory> shared_memory;
  std::shared_ptr<const TemporaryFiles> temporary;  // null: its copies have the machine's
  // In its folder CRIU is told not to look at some of the programs: with another set of these one has
  // another.
  std::shared_ptr<const ImageDirectory> directory;

  // Of the machine's files, as a copy with these binds has them.
  bool checked = true;  // false: they were not looked at, and nothing of this is there
  FileIdentities programs;
  std::set<std::string> known_programs;  // of those, by their names in the image, that CRIU need not look at
  FileIdentities::Checked uncovered;     // of those, where no bind lies over them
  std::vector<JobLock> locks;
  absl::Status outputs;  // may one begin that has no log in place of the files where its output went?

  uint64_t bytes() const { return shared_memory->bytes() + (temporary ? temporary->bytes() : 0); }
};

// Thread-safe. `binds`: those of the copy that is to be made. `image`: a digest.
class PreparedImages {
 public:
  using Image = std::shared_ptr<const PreparedImage>;

  explicit PreparedImages(std::string runtime_directory) : runtime_directory_(std::move(runtime_directory)) {}

  // Null: none for these, or what it was made from has changed.
  Image Kept(const std::string& image, const BoundPaths& binds) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was made of the image before, for whatever binds, with the files as these have them. NotFound:
  // nothing was, or it is of no use for that.
  absl::StatusOr<Image> PrepareAgain(const std::string& image, const BoundPaths& binds, Timeline* timeline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // From the store. `kept`: folders that stay the machine's where a copy has a /tmp of its own. `*prefetch`
  // goes on while CRIU works.
  absl::StatusOr<Image> Prepare(store::Store& store, const criu::Installation& criu, const std::string& image,
                                const BoundPaths& binds, const std::vector<std::string>& kept,
                                std::optional<FilePrefetch>* prefetch, Timeline* timeline)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the image alone, as it was when it was kept: its files may have changed, or not have been looked at.
  // Null: it is not kept. No use of it.
  Image Find(const std::string& image) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> names() const ABSL_LOCKS_EXCLUDED(mutex_);  // digests
  void Forget(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Images = KeptByUse<const PreparedImage>;
  Image KnownOf(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep(const std::string& digest, const BoundPaths& binds, Image image) ABSL_LOCKS_EXCLUDED(mutex_);
  // `images`: prepared_ or with_binds_.
  Image UnchangedIn(Images PreparedImages::*images, const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those whose image is not kept any more.
  Images::Gone TakeOrphans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string runtime_directory_;
  mutable absl::Mutex mutex_;
  static constexpr size_t kMostPrepared = 64, kMostWithBinds = 32;
  Images prepared_ ABSL_GUARDED_BY(mutex_){kMostPrepared};  // by digest
  // By digest and binds, of images that are in prepared_: however many there are, these stay.
  Images with_binds_ ABSL_GUARDED_BY(mutex_){kMostWithBinds};
};

}  // namespace rekindle::restore
