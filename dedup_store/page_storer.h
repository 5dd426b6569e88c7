// Stores the pages of one image on several threads: finds those that are known, and writes the others to
// packs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "dedup_store/image_content.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/pack_writer.h"
#include "dedup_store/page_claims.h"
#include "dedup_store/page_index.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {

// The packs that the image refers to, in order of first use. Thread-safe.
class PackList {
 public:
  // The first positions belong to packs that are being written.
  explicit PackList(size_t own) : packs_(own) {}
  uint32_t PositionOf(const std::shared_ptr<const Pack>& pack);
  std::vector<std::shared_ptr<const Pack>> packs() const;

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, uint32_t> positions_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const Pack>> packs_ ABSL_GUARDED_BY(mutex_);  // null for the own ones
};

struct PageCounts {
  uint64_t zero = 0, parent = 0, shared = 0, fresh = 0;
};

class PageStorer {
 public:
  using Progress = std::function<bool(uint64_t, uint64_t)>;
  // A page that another image, which is being written at this moment, is storing.
  struct Deferred {
    const std::byte* data;
    uint64_t fingerprint;
    uint32_t ordinal;
    std::shared_ptr<PageClaims::Ticket> other;
  };

  // `content` is laid out, and outlives this.
  PageStorer(StoreCore* core, const ImageReaderImpl* parent, PageClaims::Ticket* ticket, PackList* packs,
             const ImageContent& content, bool sparing);
  ~PageStorer();

  // All pages of the content, into `writer`, whose position in the list of packs is `own`.
  absl::Status StoreAll(PackWriter* writer, uint32_t own, const Progress& progress);
  // The deferred pages, once their writers have settled: those that came to nothing are stored in `writer`.
  // Asks `progress` again and again while it waits.
  absl::Status StoreDeferred(PackWriter* writer, uint32_t own, const Progress& progress);

  // How many appenders StoreAll and StoreDeferred will have.
  size_t appenders() const;
  size_t deferred_appenders() const;
  const std::vector<Deferred>& deferred() const { return deferred_; }
  const std::vector<PageLocation>& locations() const { return locations_; }
  const PageCounts& counts() const { return counts_; }

 private:
  struct Slice;
  struct Worker;
  struct ParentPack;
  std::vector<Slice> CutSlices() const;
  size_t AppendersFor(size_t slices) const;
  // Stores `slices` slices with as many threads as they are worth.
  absl::Status StoreSlices(PackWriter* writer, uint32_t own, size_t slices,
                           const std::function<absl::Status(size_t slice, Worker&)>& store);
  absl::Status StoreSlice(const Slice& slice, Worker& worker);
  absl::Status StoreRange(const Slice& slice, const ContentRange& range, Worker& worker);
  // Those that are not the parent's: of another image, of this one, or new.
  absl::Status StoreUnknown(absl::Span<const NewPage> pages, int level, Worker& worker);
  absl::Status TakeFromParent(const Slice& slice, const ContentRange& range, Worker& worker);
  absl::Status StoreNew(Worker& worker, const NewPage& page, int level);
  absl::Status AppendFrame(Worker& worker, int level);
  std::optional<PageIndex::Found> FindEqual(Worker& worker, uint64_t fingerprint, const std::byte* data);
  // A pack of the parent, its page table loaded.
  const ParentPack& LoadedParent(uint32_t pack);
  void KeepDamage(Worker& worker);
  const std::byte* DataOf(uint32_t ordinal) const;
  void Place(const Worker& worker, uint32_t own);

  StoreCore* const core_;
  const ImageReaderImpl* const parent_;
  PageClaims::Ticket* const ticket_;
  PackList* const packs_;
  const ImageContent& content_;
  const bool sparing_;
  std::vector<std::unique_ptr<ParentPack>> parent_packs_;
  std::unique_ptr<PageIndex> index_;
  std::vector<PageLocation> locations_;      // each is written by one worker
  std::vector<const ContentRange*> ranges_;  // by first ordinal
  std::vector<Slice> slices_;
  std::vector<Deferred> deferred_;
  PageCounts counts_;
};

}  // namespace rekindle::store
