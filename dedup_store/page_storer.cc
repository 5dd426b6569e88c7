#include "dedup_store/page_storer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

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

// Ranges of one object. Small ones are taken together, so that their pages compress as one.
struct PageStorer::Slice {
  const std::vector<Extent>* parent_extents = nullptr;
  std::vector<ContentRange> ranges;
  uint64_t pages = 0;
  int level = 0;
};

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
  // Met while looking for equal pages. The index keeps the packs.
  absl::flat_hash_map<const Pack*, std::vector<uint32_t>> damaged;
};

PageStorer::PageStorer(StoreCore* core, const ImageReaderImpl* parent, PageClaims::Ticket* ticket,
                       PackList* packs, const ImageContent& content, bool sparing)
    : core_(core), parent_(parent), ticket_(ticket), packs_(packs), content_(content), sparing_(sparing) {
  if (parent_ != nullptr) {
    for (const auto& pack : parent_->packs()) {
      parent_packs_.push_back(std::make_unique<ParentPack>());
      parent_packs_.back()->position = packs_->PositionOf(pack);
    }
  }
  locations_.resize(content_.total_pages);
  auto add_ranges = [this](const ContentObject& object) {
    for (const ContentRange& range : object.ranges) ranges_.push_back(&range);
  };
  add_ranges(content_.blob_object);
  for (const ContentObject& object : content_.objects) add_ranges(object);
  slices_ = CutSlices();
}

PageStorer::~PageStorer() = default;

const std::byte* PageStorer::DataOf(uint32_t ordinal) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), ordinal,
                                [](uint32_t o, const ContentRange* r) { return o < r->first_ordinal; });
  const ContentRange& range = **std::prev(after);
  return range.data + size_t{ordinal - range.first_ordinal} * kPageSize;
}

std::vector<PageStorer::Slice> PageStorer::CutSlices() const {
  std::vector<Slice> slices;
  auto cut = [&](const ContentObject& object, const std::vector<Extent>* parent_extents, int level) {
    Slice slice{parent_extents, {}, 0, level};
    auto close = [&] {
      if (slice.pages > 0) slices.push_back(std::move(slice));
      slice = {parent_extents, {}, 0, level};
    };
    for (const ContentRange& range : object.ranges) {
      for (uint64_t done = 0; done < range.pages;) {
        // Cut at multiples of the slice size, so that frames of successive images begin at the same
        // addresses.
        uint64_t page = range.page + done;
        uint64_t n = std::min(range.pages - done, kSlicePages - page % kSlicePages);
        if (slice.pages + n > kSlicePages) close();
        const std::byte* data = range.data == nullptr ? nullptr : range.data + done * kPageSize;
        slice.ranges.push_back({page, data, n, range.first_ordinal + static_cast<uint32_t>(done)});
        slice.pages += n;
        done += n;
      }
    }
    close();
  };
  int level = core_->compression_level();
  bool few_blobs = content_.blob_stream.size() <= kSmallBlobStream;
  cut(content_.blob_object, parent_ != nullptr ? &parent_->manifest().blob_stream : nullptr,
      level > 0 && few_blobs && !sparing_ ? std::max(level, kBlobLevel) : level);
  for (const ContentObject& object : content_.objects) {
    cut(object, parent_ != nullptr ? parent_->FindExtents(object.name) : nullptr, level);
  }
  return slices;
}

const PageStorer::ParentPack& PageStorer::LoadedParent(uint32_t pack) {
  ParentPack& parent = *parent_packs_[pack];
  absl::call_once(parent.once, [&] { parent.table = PageTable::Load(core_, *parent_->packs()[pack]); });
  return parent;
}

std::optional<PageIndex::Found> PageStorer::FindEqual(Worker& worker, uint64_t fingerprint,
                                                      const std::byte* data) {
  return index_->Find(fingerprint, [&](const Pack& pack, uint32_t page) {
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
      PageLocation& location = locations_[range.first_ordinal + (page - range.page)];
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
  index_->Prefetch({fingerprints, pages.size()});
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

size_t PageStorer::AppendersFor(size_t slices) const {
  return std::clamp<size_t>(slices / 2, 1, core_->threads());
}

size_t PageStorer::appenders() const { return AppendersFor(slices_.size()); }
size_t PageStorer::deferred_appenders() const { return AppendersFor(SlicesOf(deferred_.size())); }

absl::Status PageStorer::StoreSlices(PackWriter* writer, uint32_t own, size_t slices,
                                     const std::function<absl::Status(size_t slice, Worker&)>& store) {
  RK_ASSIGN_OR_RETURN(index_, PageIndex::Load(core_));
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  absl::Status error;
  std::vector<std::unique_ptr<Worker>> workers;
  for (size_t i = 0; i < AppendersFor(slices); ++i)
    workers.push_back(std::make_unique<Worker>(writer, core_->fingerprinter()));

  InParallel(workers.size(), [&](size_t i) {
    Worker& worker = *workers[i];
    absl::Status status;
    for (size_t slice; status.ok() && !stop && (slice = next.fetch_add(1)) < slices;)
      status = store(slice, worker);
    if (status.ok() && !stop) status = worker.appender.Flush(&worker.placed);
    if (status.ok()) return;
    absl::MutexLock lock(&mutex);
    error.Update(status);
    stop = true;
  });
  for (const auto& worker : workers) KeepDamage(*worker);
  RK_RETURN_IF_ERROR(error);
  for (const auto& worker : workers) {
    Place(*worker, own);
    deferred_.insert(deferred_.end(), worker->deferred.begin(), worker->deferred.end());
  }
  return absl::OkStatus();
}

absl::Status PageStorer::StoreAll(PackWriter* writer, uint32_t own, const Progress& progress) {
  absl::Mutex mutex;
  uint64_t done = 0;
  return StoreSlices(writer, own, slices_.size(), [&](size_t i, Worker& worker) -> absl::Status {
    const absl::Status status = StoreSlice(slices_[i], worker);
    absl::MutexLock lock(&mutex);
    done += slices_[i].pages;
    if (status.ok() && progress && !progress(done * kPageSize, content_.total_pages * kPageSize))
      return absl::CancelledError("cancelled");
    return status;
  });
}

absl::Status PageStorer::StoreDeferred(PackWriter* writer, uint32_t own, const Progress& progress) {
  const uint64_t all_bytes = locations_.size() * kPageSize;
  const auto wanted = [&] { return !progress || progress(all_bytes, all_bytes); };
  for (const PageClaims::Ticket* settled = nullptr; const Deferred& page : deferred_) {
    if (page.other.get() == settled) continue;
    while (!page.other->AwaitSettled(kAskWhileWaiting)) {
      if (!wanted()) return absl::CancelledError("cancelled");
    }
    settled = page.other.get();
  }
  absl::Mutex mutex;                               // of the progress, and of:
  absl::flat_hash_map<uint64_t, uint32_t> stored;  // what several deferred pages have in common
  const int level = core_->compression_level();
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
        index_->Prefetch({fingerprints, count});
      }
      RK_RETURN_IF_ERROR(store_page(deferred_[i], worker));
    }
    RK_RETURN_IF_ERROR(AppendFrame(worker, level));
    absl::MutexLock lock(&mutex);
    return wanted() ? absl::OkStatus() : absl::CancelledError("cancelled");
  };
  return StoreSlices(writer, own, SlicesOf(deferred_.size()), store_slice);
}

}  // namespace rekindle::store
