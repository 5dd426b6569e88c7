// Stores the pages of one image on several threads: finds those that are known, and writes the others to
// packs.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
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

  PageStorer(StoreCore* core, const ImageReaderImpl* parent, PageClaims::Ticket* ticket, PackList* packs,
             bool sparing);
  ~PageStorer();

  // How many threads so many pages are worth. Each appends to the pack by itself.
  size_t AppendersFor(uint64_t pages) const;
  // Comes first: pages go into `writer`, whose position in the list of packs is `own` and which has room for
  // so many appenders. `early`: they are stored while more are added, by threads that end with Finish or the
  // storer.
  absl::Status Begin(PackWriter* writer, uint32_t own, size_t appenders, bool early);
  // The next pages, by ascending ordinals, those of one object one after another. What has gone wrong with
  // the ones before.
  absl::Status Add(absl::string_view object, const ContentRange& range);
  // Stores all that is left, and the blobs.
  absl::Status Finish(const ImageContent& content, const Progress& progress);
  // The deferred pages, once their writers have settled: those that came to nothing are stored in `writer`.
  // Asks `progress` again and again while it waits.
  absl::Status StoreDeferred(PackWriter* writer, uint32_t own, size_t appenders, const Progress& progress);

  const std::vector<Deferred>& deferred() const { return deferred_; }
  const PageLocations& locations() const { return locations_; }
  const PageCounts& counts() const { return counts_; }

 private:
  // Ranges of one object. Small ones are taken together, so that their pages compress as one.
  struct Slice {
    const std::vector<Extent>* parent_extents = nullptr;
    std::vector<ContentRange> ranges;
    uint64_t pages = 0;
    int level = 0;
  };
  struct Worker;
  struct ParentPack;
  // Adds the range to `slice`; what is full of it goes to `full`.
  static void Cut(const ContentRange& range, Slice& slice, std::deque<Slice>& full);
  static void Close(Slice& slice, std::deque<Slice>& full);
  void NoteData(const ContentRange& range);
  Worker* NewWorker();
  // Stores slices until no more come.
  void Work(Worker& worker);
  std::optional<Slice> NextSlice() ABSL_LOCKS_EXCLUDED(mutex_);
  bool SliceOrEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !slices_.empty() || all_added_ || stop_;
  }
  void JoinThreads();
  absl::Status Failure() ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the worker use the newest state of the index that is loaded; what was committed while pages came is
  // looked for.
  absl::Status UseIndex(Worker& worker) ABSL_LOCKS_EXCLUDED(index_mutex_);
  absl::Status LoadIndex() ABSL_EXCLUSIVE_LOCKS_REQUIRED(index_mutex_);
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
  const std::byte* DataOf(uint32_t ordinal) const ABSL_LOCKS_EXCLUDED(data_mutex_);
  void Place(const Worker& worker, uint32_t own);

  StoreCore* const core_;
  const ImageReaderImpl* const parent_;
  PageClaims::Ticket* const ticket_;
  PackList* const packs_;
  const bool sparing_;
  std::vector<std::unique_ptr<ParentPack>> parent_packs_;
  PackWriter* writer_ = nullptr;
  uint32_t own_ = 0;
  size_t appenders_ = 1;
  bool early_ = false;
  std::string object_;  // whose pages are being added
  Slice open_;
  PageLocations locations_;  // each is written by one worker
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::vector<Deferred> deferred_;
  PageCounts counts_;

  absl::Mutex mutex_;
  std::deque<Slice> slices_ ABSL_GUARDED_BY(mutex_);  // to be stored
  bool all_added_ ABSL_GUARDED_BY(mutex_) = false, stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::exception_ptr thrown_ ABSL_GUARDED_BY(mutex_);
  uint64_t done_pages_ ABSL_GUARDED_BY(mutex_) = 0;
  const Progress* progress_ ABSL_GUARDED_BY(mutex_) = nullptr;

  absl::Mutex index_mutex_;
  std::shared_ptr<PageIndex> index_ ABSL_GUARDED_BY(index_mutex_);
  uint64_t last_image_ ABSL_GUARDED_BY(index_mutex_) = 0;  // that it may have pages of

  mutable absl::Mutex data_mutex_;
  // Where pages lie in memory, by the first one's ordinal.
  std::vector<std::pair<uint32_t, const std::byte*>> data_ ABSL_GUARDED_BY(data_mutex_);
};

}  // namespace rekindle::store
