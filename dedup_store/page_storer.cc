#include "dedup_store/page_storer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "dedup_store/frame_loader.h"
#include "dedup_store/page_table.h"

namespace rekindle::store {

namespace {

// What a worker takes at a time.
constexpr uint64_t kSlicePages = 1024;
// What is looked up at a time. Together they stay in a core's cache.
constexpr size_t kPagesAhead = 32;
// Metadata files are small and compress far better with more effort.
constexpr uint64_t kSmallBlobStream = uint64_t{1} << 20;
constexpr int kBlobLevel = 9;
// How soon whoever waits for another image sees that nobody wants its own any more.
constexpr absl::Duration kAskWhileWaiting = absl::Milliseconds(50);

size_t SlicesOf(uint64_t pages) { return (pages + kSlicePages - 1) / kSlicePages; }

}  // namespace

uint32_t PackList::PositionOf(const std::shared_ptr<const Pack>& pack) {
  absl::MutexLock lock(&mutex_);
  auto [it, inserted] = positions_.try_emplace(pack->id(), static_cast<uint32_t>(packs_.size()));
  if (inserted) packs_.push_back(pack);
  return it->second;
}

std::vector<std::shared_ptr<const Pack>> PackList::packs() const {
  absl::MutexLock lock(&mutex_);
  return packs_;
}

// A pack of the parent; its page table is loaded when the first page is held against it.
struct PageStorer::ParentPack {
  uint32_t position = 0;  // in packs_
  absl::once_flag once;
  PageTable table;
};

struct PageStorer::Worker {
  Worker(PackWriter* writer, const Fingerprinter& fingerprinter)
      : appender(writer), comparer(fingerprinter) {}
  PackWriter::Appender appender;
  PageComparer comparer;
  std::vector<NewPage> frame;
  std::vector<PackWriter::Placed> placed;
  std::vector<Deferred> deferred;
  PageCounts counts;
  std::shared_ptr<PageIndex> index;
  // Met while looking for equal pages. The index keeps the packs.
  absl::flat_hash_map<const Pack*, std::vector<uint32_t>> damaged;
};

PageStorer::PageStorer(StoreCore* core, const ImageReaderImpl* parent, PageClaims::Ticket* ticket,
                       PackList* packs, bool sparing)
    : core_(core), parent_(parent), ticket_(ticket), packs_(packs), sparing_(sparing) {
  if (parent_ == nullptr) return;
  for (const auto& pack : parent_->packs()) {
    parent_packs_.push_back(std::make_unique<ParentPack>());
    parent_packs_.back()->position = packs_->PositionOf(pack);
  }
}

PageStorer::~PageStorer() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  JoinThreads();
}

void PageStorer::NoteData(const ContentRange& range) {
  if (range.data == nullptr) return;
  absl::MutexLock lock(&data_mutex_);
  data_.emplace_back(range.first_ordinal, range.data);
}

const std::byte* PageStorer::DataOf(uint32_t ordinal) const {
  absl::ReaderMutexLock lock(&data_mutex_);
  auto after = std::upper_bound(data_.begin(), data_.end(), ordinal,
                                [](uint32_t o, const auto& data) { return o < data.first; });
  const auto& [first, data] = *std::prev(after);
  return data + size_t{ordinal - first} * kPageSize;
}

void PageStorer::Cut(const ContentRange& range, Slice& slice, std::deque<Slice>& full) {
  for (uint64_t done = 0; done < range.pages;) {
    // Cut at multiples of the slice size, so that frames of successive images begin at the same addresses.
    uint64_t page = range.page + done;
    uint64_t n = std::min(range.pages - done, kSlicePages - page % kSlicePages);
    if (slice.pages + n > kSlicePages) Close(slice, full);
    const std::byte* data = range.data == nullptr ? nullptr : range.data + done * kPageSize;
    slice.ranges.push_back({page, data, n, range.first_ordinal + static_cast<uint32_t>(done), false});
    slice.pages += n;
    done += n;
  }
}

void PageStorer::Close(Slice& slice, std::deque<Slice>& full) {
  if (slice.pages == 0) return;
  full.push_back(std::move(slice));
  slice = {full.back().parent_extents, {}, 0, full.back().level};
}

const PageStorer::ParentPack& PageStorer::LoadedParent(uint32_t pack) {
  ParentPack& parent = *parent_packs_[pack];
  absl::call_once(parent.once, [&] { parent.table = PageTable::Load(core_, *parent_->packs()[pack]); });
  return parent;
}

std::optional<PageIndex::Found> PageStorer::FindEqual(Worker& worker, uint64_t fingerprint,
                                                      const std::byte* data) {
  return worker.index->Find(fingerprint, [&](const Pack& pack, uint32_t page) {
    bool damaged = false;
    if (worker.comparer.Equal(pack, page, data, &damaged)) return true;
    const uint32_t frame = pack.FrameOfPage(page);
    if (damaged && core_->damaged_frames().Add({pack.id(), frame})) worker.damaged[&pack].push_back(frame);
    return false;
  });
}

// Once for each pack: there may be many such frames, and their table is written anew.
void PageStorer::KeepDamage(Worker& worker) {
  for (const auto& [pack, frames] : worker.damaged) {
    Log(LogLevel::kWarning, absl::StrCat("pack ", pack->path(), " is damaged: ", frames.size(),
                                         " of its chunks are not used any more; `rekindle fsck --read` tells "
                                         "which images need them"));
    if (absl::Status kept = KeepForgotten(core_, *pack, frames); !kept.ok()) {
      Log(LogLevel::kWarning, kept.message());
    }
  }
  worker.damaged.clear();
}

absl::Status PageStorer::AppendFrame(Worker& worker, int level) {
  if (worker.frame.empty()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(worker.appender.Append(worker.frame, level, &worker.placed));
  worker.frame.clear();
  return absl::OkStatus();
}

absl::Status PageStorer::StoreNew(Worker& worker, const NewPage& page, int level) {
  ++worker.counts.fresh;
  worker.frame.push_back(page);
  return worker.frame.size() == kMaxZstdFramePages ? AppendFrame(worker, level) : absl::OkStatus();
}

absl::Status PageStorer::StoreSlice(const Slice& slice, Worker& worker) {
  for (const ContentRange& range : slice.ranges) {
    RK_RETURN_IF_ERROR(range.data == nullptr ? TakeFromParent(slice, range, worker)
                                             : StoreRange(slice, range, worker));
  }
  return AppendFrame(worker, slice.level);
}

absl::Status PageStorer::TakeFromParent(const Slice& slice, const ContentRange& range, Worker& worker) {
  static const std::vector<Extent> kNone;
  const std::vector<Extent>& extents = slice.parent_extents ? *slice.parent_extents : kNone;
  uint64_t page = range.page;
  const uint64_t end = range.page + range.pages;
  for (auto extent = FirstBehind(extents, page); page < end; ++extent) {
    if (extent == extents.end() || extent->page > page) {
      return absl::InternalError(absl::StrCat("the parent has no page at ", absl::Hex(page * kPageSize)));
    }
    for (const uint64_t until = std::min(end, extent->page + extent->pages); page < until; ++page) {
      PageLocation& location = locations_[static_cast<uint32_t>(range.first_ordinal + (page - range.page))];
      if (extent->zero()) {
        location = PageLocation::Zero();
        ++worker.counts.zero;
        continue;
      }
      auto pack_page = static_cast<uint32_t>(extent->pack_page + (page - extent->page));
      // Somebody may have found the damage since the parent was asked.
      const ParentPack& parent = LoadedParent(extent->pack);
      if (core_->damaged_frames().HasPage(*parent_->packs()[extent->pack], pack_page)) {
        return absl::DataLossError(absl::StrCat(
            "the page at ", absl::Hex(page * kPageSize), ", which is as it was in image ",
            parent_->info().reference, ", is damaged there; take the image again: then it is copied"));
      }
      location = PageLocation(parent.position, pack_page);
      ++worker.counts.parent;
    }
  }
  return absl::OkStatus();
}

absl::Status PageStorer::StoreRange(const Slice& slice, const ContentRange& range, Worker& worker) {
  std::vector<Extent>::const_iterator extent, extents_end;
  if (slice.parent_extents != nullptr) {
    extents_end = slice.parent_extents->end();
    extent = FirstBehind(*slice.parent_extents, range.page);
  }
  NewPage unknown[kPagesAhead];
  size_t count = 0;
  for (uint64_t i = 0; i < range.pages; ++i) {
    if (count == kPagesAhead) {
      RK_RETURN_IF_ERROR(StoreUnknown({unknown, count}, slice.level, worker));
      count = 0;
    }
    const std::byte* data = range.data + i * kPageSize;
    auto ordinal = static_cast<uint32_t>(range.first_ordinal + i);
    PageLocation& location = locations_[ordinal];
    if (IsZeroPage(data)) {
      location = PageLocation::Zero();
      ++worker.counts.zero;
      continue;
    }
    const uint64_t fingerprint = core_->fingerprinter().OfPage(data);
    if (slice.parent_extents != nullptr) {
      uint64_t page = range.page + i;
      while (extent != extents_end && extent->page + extent->pages <= page) ++extent;
      if (extent != extents_end && extent->page <= page && !extent->zero()) {
        const ParentPack& parent = LoadedParent(extent->pack);
        auto pack_page = static_cast<uint32_t>(extent->pack_page + (page - extent->page));
        if (parent.table.fingerprints()[pack_page] == fingerprint &&
            !core_->damaged_frames().HasPage(*parent_->packs()[extent->pack], pack_page)) {
          location = PageLocation(parent.position, pack_page);
          ++worker.counts.parent;
          continue;
        }
      }
    }
    unknown[count++] = {data, fingerprint, ordinal};
  }
  return StoreUnknown({unknown, count}, slice.level, worker);
}

absl::Status PageStorer::StoreUnknown(absl::Span<const NewPage> pages, int level, Worker& worker) {
  uint64_t fingerprints[kPagesAhead];
  for (size_t i = 0; i < pages.size(); ++i) fingerprints[i] = pages[i].fingerprint;
  worker.index->Prefetch({fingerprints, pages.size()});
  for (const NewPage& page : pages) {
    PageLocation& location = locations_[page.ordinal];
    if (auto found = FindEqual(worker, page.fingerprint, page.data)) {
      location = PageLocation(packs_->PositionOf(found->pack), found->page);
      ++worker.counts.shared;
      continue;
    }
    PageClaims::Claimed claimed = core_->claims().Claim(*ticket_, page.fingerprint, page.ordinal);
    if (claimed.other != nullptr) {
      worker.deferred.push_back({page.data, page.fingerprint, page.ordinal, std::move(claimed.other)});
      continue;
    }
    if (claimed.first_ordinal != page.ordinal &&
        memcmp(DataOf(claimed.first_ordinal), page.data, kPageSize) == 0) {
      location = PageLocation::SameAs(claimed.first_ordinal);
      ++worker.counts.shared;
      continue;
    }
    RK_RETURN_IF_ERROR(StoreNew(worker, page, level));
  }
  return absl::OkStatus();
}

void PageStorer::Place(const Worker& worker, uint32_t own) {
  for (const PackWriter::Placed& placed : worker.placed) {
    locations_[placed.ordinal] = PageLocation(own, placed.page);
  }
  counts_.zero += worker.counts.zero;
  counts_.parent += worker.counts.parent;
  counts_.shared += worker.counts.shared;
  counts_.fresh += worker.counts.fresh;
}

absl::Status PageStorer::LoadIndex() {
  // The index after the number: what is committed in between is in it, and is looked for once more.
  if (early_) {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    uint64_t last = 0;
    txn.ForEachImage([&last](const ImageRecord& image) { last = image.id; });
    last_image_ = last;
  }
  RK_ASSIGN_OR_RETURN(index_, PageIndex::Load(core_));
  return absl::OkStatus();
}

absl::Status PageStorer::UseIndex(Worker& worker) {
  absl::MutexLock lock(&index_mutex_);
  if (early_) {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    RK_ASSIGN_OR_RETURN(const std::vector<ImageRecordPtr> news, txn.ImagesAfter(last_image_));
    if (!news.empty()) RK_RETURN_IF_ERROR(LoadIndex());
  }
  if (worker.index == index_) return absl::OkStatus();
  KeepDamage(worker);
  worker.index = index_;
  return absl::OkStatus();
}

PageStorer::Worker* PageStorer::NewWorker() {
  workers_.push_back(std::make_unique<Worker>(writer_, core_->fingerprinter()));
  return workers_.back().get();
}

size_t PageStorer::AppendersFor(uint64_t pages) const {
  return std::clamp<size_t>(SlicesOf(pages) / 2, 1, core_->threads());
}

absl::Status PageStorer::Begin(PackWriter* writer, uint32_t own, size_t appenders, bool early) {
  writer_ = writer;
  own_ = own;
  appenders_ = appenders;
  early_ = early;
  {
    absl::MutexLock lock(&index_mutex_);
    RK_RETURN_IF_ERROR(LoadIndex());
  }
  if (!early) return absl::OkStatus();
  threads_.reserve(appenders_);
  try {
    while (threads_.size() < appenders_) {
      threads_.emplace_back([this, worker = NewWorker()] { Work(*worker); });
    }
  } catch (const std::system_error&) {
    // Finish does what they can't.
  }
  return absl::OkStatus();
}

absl::Status PageStorer::Add(absl::string_view object, const ContentRange& range) {
  if (object_ != object) {
    absl::MutexLock lock(&mutex_);
    Close(open_, slices_);
    object_ = std::string(object);
    open_ = {parent_ != nullptr ? parent_->FindExtents(object) : nullptr, {}, 0, core_->compression_level()};
  }
  locations_.GrowTo(uint64_t{range.first_ordinal} + range.pages);
  NoteData(range);
  {
    absl::MutexLock lock(&mutex_);
    Cut(range, open_, slices_);
  }
  return Failure();
}

absl::Status PageStorer::Failure() {
  absl::MutexLock lock(&mutex_);
  if (thrown_) std::rethrow_exception(thrown_);
  return error_;
}

std::optional<PageStorer::Slice> PageStorer::NextSlice() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &PageStorer::SliceOrEnd));
  if (stop_ || slices_.empty()) return std::nullopt;
  Slice slice = std::move(slices_.front());
  slices_.pop_front();
  return slice;
}

void PageStorer::Work(Worker& worker) {
  absl::Status status;
  std::exception_ptr thrown;
  try {
    while (std::optional<Slice> slice = status.ok() ? NextSlice() : std::nullopt) {
      status = UseIndex(worker);
      if (status.ok()) status = StoreSlice(*slice, worker);
      absl::MutexLock lock(&mutex_);
      done_pages_ += slice->pages;
      if (status.ok() && progress_ != nullptr && *progress_ &&
          !(*progress_)(done_pages_ * kPageSize, locations_.size() * kPageSize)) {
        status = absl::CancelledError("cancelled");
      }
    }
    if (status.ok() && Failure().ok()) status = worker.appender.Flush(&worker.placed);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (status.ok() && !thrown) return;
  absl::MutexLock lock(&mutex_);
  error_.Update(status);
  if (!thrown_) thrown_ = thrown;
  stop_ = true;
}

void PageStorer::JoinThreads() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status PageStorer::Finish(const ImageContent& content, const Progress& progress) {
  const int level = core_->compression_level();
  const bool few_blobs = content.blob_stream.size() <= kSmallBlobStream;
  Slice blobs{parent_ != nullptr ? &parent_->manifest().blob_stream : nullptr,
              {},
              0,
              level > 0 && few_blobs && !sparing_ ? std::max(level, kBlobLevel) : level};
  std::deque<Slice> blob_slices;
  locations_.GrowTo(content.ordinals());
  for (const ContentRange& range : content.blob_object.ranges) {
    NoteData(range);
    Cut(range, blobs, blob_slices);
  }
  Close(blobs, blob_slices);
  size_t left = 0;
  {
    absl::MutexLock lock(&mutex_);
    Close(open_, slices_);
    // First, as they take the longest.
    slices_.insert(slices_.begin(), std::make_move_iterator(blob_slices.begin()),
                   std::make_move_iterator(blob_slices.end()));
    left = slices_.size();
    all_added_ = true;
    progress_ = &progress;
  }
  if (threads_.empty()) {
    std::vector<Worker*> workers(std::clamp<size_t>(left / 2, 1, appenders_));
    for (Worker*& worker : workers) worker = NewWorker();
    InParallel(workers.size(), [&](size_t i) { Work(*workers[i]); });
  }
  JoinThreads();
  {
    absl::MutexLock lock(&mutex_);
    progress_ = nullptr;
  }
  for (const auto& worker : workers_) KeepDamage(*worker);
  RK_RETURN_IF_ERROR(Failure());
  for (const auto& worker : workers_) {
    Place(*worker, own_);
    deferred_.insert(deferred_.end(), worker->deferred.begin(), worker->deferred.end());
  }
  workers_.clear();
  return absl::OkStatus();
}

absl::Status PageStorer::StoreDeferred(PackWriter* writer, uint32_t own, size_t appenders,
                                       const Progress& progress) {
  const uint64_t all_bytes = locations_.size() * kPageSize;
  const auto wanted = [&] { return !progress || progress(all_bytes, all_bytes); };
  for (const PageClaims::Ticket* settled = nullptr; const Deferred& page : deferred_) {
    if (page.other.get() == settled) continue;
    while (!page.other->AwaitSettled(kAskWhileWaiting)) {
      if (!wanted()) return absl::CancelledError("cancelled");
    }
    settled = page.other.get();
  }
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<PageIndex> index, PageIndex::Load(core_));
  const int level = core_->compression_level();
  const size_t slices = SlicesOf(deferred_.size());
  std::vector<std::unique_ptr<Worker>> workers(std::min(appenders, slices));
  for (std::unique_ptr<Worker>& worker : workers) {
    worker = std::make_unique<Worker>(writer, core_->fingerprinter());
    worker->index = index;
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mutex;  // of the progress, and of:
  absl::Status error;
  absl::flat_hash_map<uint64_t, uint32_t> stored;  // what several deferred pages have in common

  const auto store_page = [&](const Deferred& page, Worker& worker) -> absl::Status {
    if (auto found = FindEqual(worker, page.fingerprint, page.data)) {
      locations_[page.ordinal] = PageLocation(packs_->PositionOf(found->pack), found->page);
      ++worker.counts.shared;
      return absl::OkStatus();
    }
    uint32_t first = page.ordinal;
    {
      absl::MutexLock lock(&mutex);
      first = stored.try_emplace(page.fingerprint, page.ordinal).first->second;
    }
    if (first != page.ordinal && memcmp(DataOf(first), page.data, kPageSize) == 0) {
      locations_[page.ordinal] = PageLocation::SameAs(first);
      ++worker.counts.shared;
      return absl::OkStatus();
    }
    return StoreNew(worker, {page.data, page.fingerprint, page.ordinal}, level);
  };
  const auto store_slice = [&](size_t slice, Worker& worker) -> absl::Status {
    const size_t begin = slice * kSlicePages, end = std::min(begin + kSlicePages, deferred_.size());
    for (size_t i = begin; i < end; ++i) {
      if (i % kPagesAhead == 0) {
        uint64_t fingerprints[kPagesAhead];
        const size_t count = std::min(kPagesAhead, end - i);
        for (size_t ahead = 0; ahead < count; ++ahead) fingerprints[ahead] = deferred_[i + ahead].fingerprint;
        index->Prefetch({fingerprints, count});
      }
      RK_RETURN_IF_ERROR(store_page(deferred_[i], worker));
    }
    RK_RETURN_IF_ERROR(AppendFrame(worker, level));
    absl::MutexLock lock(&mutex);
    return wanted() ? absl::OkStatus() : absl::CancelledError("cancelled");
  };
  InParallel(workers.size(), [&](size_t i) {
    absl::Status status;
    for (size_t slice; status.ok() && !stop && (slice = next.fetch_add(1)) < slices;)
      status = store_slice(slice, *workers[i]);
    if (status.ok() && !stop) status = workers[i]->appender.Flush(&workers[i]->placed);
    if (status.ok()) return;
    absl::MutexLock lock(&mutex);
    error.Update(status);
    stop = true;
  });
  for (const auto& worker : workers) KeepDamage(*worker);
  RK_RETURN_IF_ERROR(error);
  for (const auto& worker : workers) Place(*worker, own);
  return absl::OkStatus();
}

}  // namespace rekindle::store
