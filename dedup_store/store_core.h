// What all parts of one open store share. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "dedup_store/blob_cache.h"
#include "dedup_store/block_io.h"
#include "dedup_store/catalog.h"
#include "dedup_store/damaged_frames.h"
#include "dedup_store/damaged_images.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"
#include "dedup_store/inherited_frames.h"
#include "dedup_store/pack.h"
#include "dedup_store/page_claims.h"
#include "dedup_store/store.h"
#include "dedup_store/store_identity.h"
#include "dedup_store/store_use.h"
#include "dedup_store/weak_map.h"

namespace rekindle::store {

class StoreCore {
 public:
  // See Store::Open.
  static absl::StatusOr<std::shared_ptr<StoreCore>> Open(const StoreOptions& options);

  const std::string& path() const { return path_; }
  std::string packs_folder() const { return path_ + "/packs"; }
  std::string index_folder() const { return path_ + "/index"; }
  std::string pack_path(uint64_t id) const { return packs_folder() + "/" + PackFileName(id); }
  std::string page_table_path(uint64_t pack_id) const {
    return index_folder() + "/" + PageTableFileName(pack_id);
  }
  std::string index_path(uint64_t id) const { return index_folder() + "/" + IndexFileName(id); }
  BlockIo* io() const { return io_; }
  Catalog& catalog() const { return *catalog_; }
  const StoreIdentity& identity() const { return identity_; }
  const Fingerprinter& fingerprinter() const { return fingerprinter_; }
  bool read_only() const { return read_only_; }
  size_t threads() const { return threads_; }
  int compression_level() const { return compression_level_; }
  // See StoreOptions.
  uint64_t Beside(std::optional<uid_t> owner) const { return beside_ ? beside_(owner) : 0; }

  // Why the catalog was made again from the packs when the store was opened; empty: it was not.
  const std::string& rebuilt_because() const { return rebuilt_because_; }

  // All of what lies in these can be lost, and so can they: a copy of the store may have come without. Where
  // one can't be made, whoever needs it says so.
  static constexpr const char* kHelpFolders[] = {"index", "tmp"};
  void MakeHelpFolders() const;

  // PermissionDenied for a store that was opened read-only. Unavailable as CheckIsThere.
  absl::Status CheckWritable() const;
  // FailedPrecondition: one of the store's folders is a symbolic link. For whoever removes what lies in them
  // and is not known: the store itself may be reached by links, but what is another's is not taken for its
  // own.
  absl::Status CheckFoldersAreOurs() const;
  // See Store.
  absl::Status CheckIsThere() const;
  // Unavailable: none of these is, so that they are not mounted rather than lost.
  absl::Status CheckSomePackIsThere(const std::vector<PackRecord>& packs) const;
  bool WasRemoved() const;

  // A pack of the catalog, locked against gc for as long as the result lives. NotFound when gc took it
  // meanwhile.
  absl::StatusOr<std::shared_ptr<const Pack>> OpenPack(uint64_t id);
  // Of one that is gone though somebody here has it open: nobody else gets it.
  void ForgetOpenPack(uint64_t id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of the images that this process is writing.
  PageClaims& claims() { return claims_; }
  // Those that were met so far. page_table.h has what adds to them.
  DamagedFrames& damaged_frames() { return damaged_frames_; }

  InheritedFrames& inherited_frames() { return inherited_frames_; }
  DamagedImages& damaged_images() { return damaged_images_; }
  StoreUse& use() { return use_; }
  BlobCache& blob_cache() { return blob_cache_; }

  // Held by the scrub while it has a pack locked, and by gc while it looks for packs that nobody has locked:
  // it would leave one to the next gc otherwise. Before any lock of a pack.
  absl::Mutex& pack_turns() { return pack_turns_; }

  // See Store.
  absl::StatusOr<std::optional<ImageInfo>> FindByName(absl::string_view reference) const;
  // Finds an image as Store::OpenImage and Store::Find describe.
  absl::StatusOr<ImageRecord> Resolve(absl::string_view image, const MaySee& may_see = nullptr) const;

 private:
  StoreCore(const StoreOptions& options, const StoreIdentity& identity);

  const std::string path_;
  BlockIo* const io_;
  const StoreIdentity identity_;
  const Fingerprinter fingerprinter_;
  const bool read_only_;
  const size_t threads_;
  const int compression_level_;
  const std::function<uint64_t(std::optional<uid_t>)> beside_;
  using FolderId = std::pair<dev_t, ino_t>;
  static absl::StatusOr<FolderId> FolderAt(const std::string& path);
  FolderId folder_;  // at the path when it was opened
  UniqueFd opened_;  // that folder, wherever it is now; for a look at it alone
  std::shared_ptr<Catalog> catalog_;
  std::string rebuilt_because_;
  PageClaims claims_;
  DamagedFrames damaged_frames_;
  InheritedFrames inherited_frames_;
  DamagedImages damaged_images_;
  StoreUse use_;
  BlobCache blob_cache_;
  absl::Mutex pack_turns_;
  absl::Mutex mutex_;
  WeakMap<uint64_t, const Pack> packs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::store
