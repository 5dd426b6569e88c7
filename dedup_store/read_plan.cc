#include "dedup_store/read_plan.h"

#include <algorithm>
#include <atomic>

#include "absl/synchronization/mutex.h"
#include "base/parallel.h"

namespace rekindle::store {

namespace {

// One read: small enough that copying, verifying and handing on all find it in the processor's cache.
constexpr uint64_t kReadBytes = uint64_t{512} << 10;
// What compresses well is more than that when it is decoded.
constexpr uint32_t kPagesAtOnce = 1024;
// Bytes between two wanted pieces that are read along rather than skipped.
constexpr uint64_t kMaxGapBytes = uint64_t{32} << 10;
// How far ahead of the readers the kernel is asked to fetch from disk.
constexpr size_t kReadsAhead = 32;

}  // namespace

std::vector<PackRead> PlanReads(const PackPointers& packs, std::vector<WantedPages>& wanted) {
  // Within a pack, page numbers ascend with offsets.
  std::sort(wanted.begin(), wanted.end(), [](const WantedPages& a, const WantedPages& b) {
    return a.pack != b.pack ? a.pack < b.pack : a.page < b.page;
  });
  std::vector<PackRead> reads;
  uint32_t pages_at_once = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const WantedPages& pages = wanted[i];
    const FrameEntry& frame = packs[pages.pack]->frame(pages.frame);
    uint64_t begin = frame.offset();
    uint64_t end = begin + frame.stored_bytes;
    PackRead* last = reads.empty() ? nullptr : &reads.back();
    if (last == nullptr || last->pack != pages.pack || begin > last->end + kMaxGapBytes ||
        std::max(end, last->end) - last->offset > kReadBytes || pages_at_once + pages.pages > kPagesAtOnce) {
      reads.push_back({pages.pack, begin, end, i, i + 1});
      pages_at_once = pages.pages;
    } else {
      pages_at_once += pages.pages;
      last->end = std::max(last->end, end);
      last->end_wanted = i + 1;
    }
  }
  return reads;
}

absl::Status RunReads(const PackPointers& packs, absl::Span<const PackRead> reads, size_t max_threads,
                      const std::function<ReadWorker()>& new_worker) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  absl::Mutex mutex;
  absl::Status first_error;
  auto ask_for = [&](size_t i) {
    if (i < reads.size())
      packs[reads[i].pack]->file().WillNeed(reads[i].offset, reads[i].end - reads[i].offset);
  };
  auto work = [&] {
    const ReadWorker worker = new_worker();
    for (size_t i; !stop && (i = next.fetch_add(1)) < reads.size();) {
      if (i == 0) {
        for (size_t ahead = 1; ahead < kReadsAhead; ++ahead) ask_for(ahead);
      }
      ask_for(i + kReadsAhead);
      if (absl::Status status = worker(reads[i]); !status.ok()) {
        absl::MutexLock lock(&mutex);
        first_error.Update(status);
        stop = true;
      }
    }
  };
  size_t threads = std::min(max_threads, (reads.size() + 3) / 4);
  InParallel(threads, [&](size_t) { work(); });
  return first_error;
}

}  // namespace rekindle::store
