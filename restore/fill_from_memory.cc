#include "restore/fill_from_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/parallel.h"
#include "base/status.h"
#include "dedup_store/hashing.h"

namespace rekindle::restore {
namespace {

// What one thread takes at a time.
constexpr uint64_t kPieceBytes = 2u << 20;

// What both have, cut into pieces; the rest of `ranges` goes to `left`.
std::vector<store::PagesInMemory> Intersect(const std::vector<store::PagesInMemory>& pages,
                                            const std::vector<store::PageRun>& ranges,
                                            std::vector<store::PageRun>* left) {
  std::vector<store::PagesInMemory> pieces;
  auto leave = [left](uint64_t begin, uint64_t end) {
    if (begin < end) left->push_back({begin, (end - begin) / store::kPageSize, false});
  };
  auto part = pages.begin();
  for (const store::PageRun& range : ranges) {
    uint64_t at = range.address;
    while (at < range.end()) {
      while (part != pages.end() && part->address + part->bytes.size() <= at) ++part;
      if (part == pages.end() || part->address >= range.end()) break;
      leave(at, part->address);
      at = std::max(at, part->address);
      const uint64_t end =
          std::min({range.end(), part->address + part->bytes.size(), (at / kPieceBytes + 1) * kPieceBytes});
      pieces.push_back({at, part->bytes.subspan(at - part->address, end - at)});
      at = end;
    }
    leave(at, range.end());
  }
  return pieces;
}

// Has the kernel keep these pages from now on.
bool Keep(absl::Span<const std::byte> bytes) {
  // Nothing is changed in pages that are there; others come as zeros.
  return ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_POPULATE_WRITE) == 0;
}

absl::Status FillPiece(const store::PagesInMemory& piece, const store::ImageReader::PageSink& sink,
                       std::vector<store::PageRun>* left) {
  const uint64_t pages = piece.bytes.size() / store::kPageSize;
  auto zero = [&](uint64_t page) { return store::IsZeroPage(piece.bytes.data() + page * store::kPageSize); };
  // Where memory is short the kernel takes large pieces, which need not be made anew for nothing.
  if (zero(0) || !Keep(piece.bytes)) {
    left->push_back({piece.address, pages, false});
    return absl::OkStatus();
  }
  for (uint64_t page = 0; page < pages;) {
    const uint64_t begin = page;
    const bool gone = zero(page++);
    while (page < pages && zero(page) == gone) ++page;
    const uint64_t address = piece.address + begin * store::kPageSize;
    if (gone) {
      left->push_back({address, page - begin, false});
      continue;
    }
    RK_RETURN_IF_ERROR(
        sink(address, piece.bytes.subspan(begin * store::kPageSize, (page - begin) * store::kPageSize)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<store::PageRun>> FillFromMemory(const std::vector<store::PagesInMemory>& pages,
                                                           const std::vector<store::PageRun>& ranges,
                                                           const store::ImageReader::PageSink& sink) {
  std::vector<store::PageRun> left;
  const std::vector<store::PagesInMemory> pieces = Intersect(pages, ranges, &left);
  std::atomic<size_t> next{0};
  absl::Mutex mutex;
  absl::Status error;
  const size_t threads = std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), pieces.size());
  InParallel(threads, [&](size_t) {
    std::vector<store::PageRun> not_there;
    absl::Status status;
    for (size_t i; status.ok() && (i = next.fetch_add(1)) < pieces.size();)
      status = FillPiece(pieces[i], sink, &not_there);
    absl::MutexLock lock(&mutex);
    error.Update(status);
    left.insert(left.end(), not_there.begin(), not_there.end());
  });
  RK_RETURN_IF_ERROR(error);
  std::sort(left.begin(), left.end(),
            [](const store::PageRun& a, const store::PageRun& b) { return a.address < b.address; });
  return left;
}

}  // namespace rekindle::restore
