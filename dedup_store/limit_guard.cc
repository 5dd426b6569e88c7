#include "dedup_store/limit_guard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "dedup_store/catalog_files.h"
#include "dedup_store/small_file.h"

namespace rekindle::store {

namespace {

using Stage = LimitChecks::Stage;

constexpr char kLimitsFile[] = "LIMITS";
// Each owner that has a limit takes some 30 bytes.
constexpr uint64_t kMostOfLimits = uint64_t{64} << 20;
// Frame table, page table and manifest come last, and are at most this part of what was written.
constexpr uint64_t kMetadataShare = 50;

std::string LimitsPath(const std::string& store_path) { return absl::StrCat(store_path, "/", kLimitsFile); }

absl::StatusOr<StoreLimits> ReadFileOfLimits(const std::string& store_path) {
  auto text = ReadSmallFile(LimitsPath(store_path), kMostOfLimits);
  if (absl::IsNotFound(text.status())) return StoreLimits();
  // What can't be read as a file is no damage to be written over: what is meant may lie elsewhere.
  if (absl::IsDataLoss(text.status())) return absl::FailedPreconditionError(text.status().message());
  RK_RETURN_IF_ERROR(text.status());
  return StoreLimits::Decode(*text);
}

// All that will be there beside the new image.
absl::StatusOr<std::vector<ImageRecordPtr>> Others(Catalog::Txn& txn, const NewImageOptions& image) {
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecordPtr> images, txn.ImagesAfter(0));
  if (image.replace && image.prepared_id.empty()) {
    std::erase_if(images,
                  [&](const ImageRecordPtr& other) { return other->info.reference == image.reference; });
  }
  return images;
}

}  // namespace

absl::StatusOr<StoreLimits> ReadLimits(const std::string& store_path) {
  absl::StatusOr<StoreLimits> limits = ReadFileOfLimits(store_path);
  if (limits.ok()) return limits;
  absl::Status status =
      Annotate(limits.status(), absl::StrCat("reading the limits of the store, ", LimitsPath(store_path)));
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(
      status.message(),
      ". No image is taken until they are known: set them with `rekindle quota --owner USER --max "
      "SIZE`, `--store-max SIZE` or `--high-water PERCENT`, which writes the file anew"));
}

absl::StatusOr<ChangedLimits> ChangeLimits(const StoreCore& core, const LimitsChange& change) {
  const std::string& store_path = core.path();
  // Two who change them at the same time take turns: those of this node by the folder, which is all that an
  // older Rekindle locks, and those of all nodes by a file, of whose lock the others know.
  RK_ASSIGN_OR_RETURN(UniqueFd folder, OpenFile(store_path, O_RDONLY | O_DIRECTORY));
  RK_RETURN_IF_ERROR(AwaitLock(folder, LOCK_EX, store_path));
  const CatalogFiles catalog(absl::StrCat(store_path, "/catalog"), core.io());
  RK_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> lock, catalog.LockForWriting());
  // Of a writer that was killed: nobody else writes now.
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(store_path));
  for (const std::string& name : names) {
    if (absl::StartsWith(name, absl::StrCat(kLimitsFile, "."))) {
      RK_RETURN_IF_ERROR(RemoveTree(absl::StrCat(store_path, "/", name)));
    }
  }
  ChangedLimits changed;
  absl::StatusOr<StoreLimits> before = ReadFileOfLimits(store_path);
  if (before.ok()) {
    changed.limits = *std::move(before);
  } else if (absl::IsDataLoss(before.status())) {
    changed.warning = absl::StrCat(LimitsPath(store_path),
                                   " was damaged and is written anew: limits that were set before are gone, "
                                   "set them again");
  } else {
    return Annotate(before.status(), absl::StrCat("changing ", LimitsPath(store_path)));
  }
  RK_RETURN_IF_ERROR(Apply(change, changed.limits));
  const absl::Status written = WriteFileAtomically(LimitsPath(store_path), changed.limits.Encode());
  if (absl::IsResourceExhausted(written)) {
    return WithMessage(
        written, absl::StrCat(written.message(), ", or remove images (`rekindle rm`) and run `rekindle gc`"));
  }
  RK_RETURN_IF_ERROR(written);
  return changed;
}

absl::StatusOr<std::unique_ptr<LimitGuard>> LimitGuard::Begin(StoreCore* core, const NewImageOptions& image) {
  RK_ASSIGN_OR_RETURN(StoreLimits limits, ReadLimits(core->path()));
  auto guard = std::unique_ptr<LimitGuard>(
      new LimitGuard(core, LimitChecks(std::move(limits), core->path(), image.owner)));
  RK_RETURN_IF_ERROR(guard->Measure(image));
  return guard;
}

absl::Status LimitGuard::Measure(const NewImageOptions& image) {
  owner_ = image.owner;
  if (checks_.has_high_water()) {
    RK_ASSIGN_OR_RETURN(file_system_, MeasureFileSystem(core_->path()));
    RK_RETURN_IF_ERROR(checks_.HighWater(Stage::kBegin, file_system_, 0));
  }
  if (!checks_.owner_is_limited() && !checks_.store_is_limited()) return absl::OkStatus();
  MeasureBeside();
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
  if (checks_.owner_is_limited()) {
    RK_ASSIGN_OR_RETURN(const std::vector<ImageRecordPtr> images, Others(txn, image));
    for (const ImageRecordPtr& other : images) {
      if (other->info.owner != owner_) continue;
      ++owner_images_;
      owner_bytes_ += QuotaBytes(other->info.stats);
    }
    RK_ASSIGN_OR_RETURN(const uint64_t inherited, MeasureInherited(images, nullptr));
    owner_bytes_ += inherited;
    RK_RETURN_IF_ERROR(checks_.Owner(Stage::kBegin, owner_bytes_, owner_images_, 0, beside_owner_));
  }
  if (checks_.store_is_limited()) {
    RK_ASSIGN_OR_RETURN(const StoreBytes bytes, core_->use().MeasureAll(*core_, txn));
    store_bytes_ = bytes.total();
    RK_RETURN_IF_ERROR(checks_.Store(Stage::kBegin, store_bytes_, 0, beside_store_));
  }
  return absl::OkStatus();
}

void LimitGuard::MeasureBeside() {
  if (checks_.owner_is_limited()) beside_owner_ = core_->Beside(owner_);
  if (checks_.store_is_limited()) beside_store_ = core_->Beside(std::nullopt);
}

absl::StatusOr<uint64_t> LimitGuard::MeasureInherited(const std::vector<ImageRecordPtr>& images,
                                                      const InheritedFrames::Coming* coming) {
  RK_ASSIGN_OR_RETURN(auto by_owner, core_->inherited_frames().Measure(*core_, images, coming));
  return by_owner[owner_];
}

absl::Status LimitGuard::BeforeCommit(const NewImageOptions& image, const Manifest& manifest,
                                      int64_t created_unix_ns) {
  MeasureBeside();
  if (checks_.store_is_limited()) {
    RK_ASSIGN_OR_RETURN(notes_bytes_, core_->use().MeasureNotes(*core_));
    // What is still changing is looked at here, and not while everybody waits for the transaction.
    sizes_.clear();
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    RK_RETURN_IF_ERROR(core_->use().Measure(*core_, txn, &sizes_).status());
  }
  if (!checks_.owner_is_limited()) return absl::OkStatus();
  std::vector<ImageRecordPtr> images;
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    RK_ASSIGN_OR_RETURN(images, Others(txn, image));
  }
  const InheritedFrames::Coming coming{&manifest, owner_, created_unix_ns};
  RK_ASSIGN_OR_RETURN(inherited_bytes_, MeasureInherited(images, &coming));
  return absl::OkStatus();
}

absl::Status LimitGuard::MayTake(uint64_t bytes, uint64_t reserved) {
  absl::MutexLock lock(&mutex_);
  const uint64_t needed = taken_ + bytes;
  RK_RETURN_IF_ERROR(checks_.Owner(Stage::kWriting, owner_bytes_, owner_images_, needed, beside_owner_));
  RK_RETURN_IF_ERROR(checks_.Store(Stage::kWriting, store_bytes_, needed, beside_store_));
  if (checks_.has_high_water()) {
    // Of our own bytes some are not on disk yet; of the others' all are.
    RK_ASSIGN_OR_RETURN(FileSystemUse now, MeasureFileSystem(core_->path()));
    const uint64_t without_reserved = now.used_bytes - std::min(now.used_bytes, reserved);
    FileSystemUse before = file_system_;
    if (without_reserved > file_system_.used_bytes + taken_) before.used_bytes = without_reserved - taken_;
    RK_RETURN_IF_ERROR(checks_.HighWater(Stage::kWriting, before, needed + needed / kMetadataShare));
  }
  taken_ = needed;
  return absl::OkStatus();
}

absl::Status LimitGuard::MayCommit(Catalog::Txn& txn, const ImageStats& stats, uint64_t pack_bytes) {
  if (checks_.owner_is_limited()) {
    uint64_t used = inherited_bytes_, count = 0;
    // Without copies: everybody who commits waits.
    txn.ForEachImage([&](const ImageRecord& other) {
      if (other.info.owner != owner_) return;
      ++count;
      used += QuotaBytes(other.info.stats);
    });
    RK_RETURN_IF_ERROR(checks_.Owner(Stage::kCommit, used, count, QuotaBytes(stats), beside_owner_));
  }
  if (checks_.store_is_limited()) {
    RK_ASSIGN_OR_RETURN(const StoreBytes bytes, core_->use().Measure(*core_, txn, &sizes_));
    RK_RETURN_IF_ERROR(
        checks_.Store(Stage::kCommit, bytes.total() + notes_bytes_, pack_bytes, beside_store_));
  }
  return absl::OkStatus();
}

}  // namespace rekindle::store
