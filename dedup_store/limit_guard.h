// Holds an image that is being written against the limits of its store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "dedup_store/limits.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// The store's limits; those that hold by default where none were ever set. A file that can't be understood is
// an error: what it said might have refused the image.
absl::StatusOr<StoreLimits> ReadLimits(const std::string& store_path);
struct ChangedLimits {
  StoreLimits limits;
  std::string warning;  // not empty: the file was damaged, and what it said besides is lost
};
absl::StatusOr<ChangedLimits> ChangeLimits(const StoreCore& core, const LimitsChange& change);

class LimitGuard {
 public:
  // ResourceExhausted when there is no room for any image. `image` has a normalized reference.
  static absl::StatusOr<std::unique_ptr<LimitGuard>> Begin(StoreCore* core, const NewImageOptions& image);

  // To be asked before `bytes` more are taken for a pack of the image, of which `reserved` are allocated on
  // disk already. Thread-safe.
  absl::Status MayTake(uint64_t bytes, uint64_t reserved) ABSL_LOCKS_EXCLUDED(mutex_);

  // To be called once it is known where all pages of the image are, before the transaction that commits it.
  absl::Status BeforeCommit(const NewImageOptions& image, const Manifest& manifest, int64_t created_unix_ns);

  // In the transaction that commits the image, after what it replaces was deleted and before it and its last
  // pack, which takes `pack_bytes`, are put in: no other image can come in between. (What images inherit that
  // are removed at that very moment the next image is held against.)
  absl::Status MayCommit(Catalog::Txn& txn, const ImageStats& stats, uint64_t pack_bytes);

 private:
  LimitGuard(StoreCore* core, LimitChecks checks) : core_(core), checks_(std::move(checks)) {}
  absl::Status Measure(const NewImageOptions& image);
  void MeasureBeside();
  // What the owner's images need of those that are gone, or go with this one.
  absl::StatusOr<uint64_t> MeasureInherited(const std::vector<ImageRecordPtr>& images,
                                            const InheritedFrames::Coming* coming);

  StoreCore* const core_;
  const LimitChecks checks_;
  // As found at the beginning.
  uint64_t owner_bytes_ = 0, owner_images_ = 0, store_bytes_ = 0;
  uint64_t inherited_bytes_ = 0, notes_bytes_ = 0;  // as found last
  uint64_t beside_owner_ = 0, beside_store_ = 0;
  StoreUse::PackSizes sizes_;
  FileSystemUse file_system_;
  uid_t owner_ = 0;
  absl::Mutex mutex_;
  uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::store
