#include "restore/missing_pages.h"

#include <algorithm>
#include <iterator>

namespace rekindle::restore {
namespace {

size_t WordsFor(uint64_t pages) { return static_cast<size_t>((pages + 63) / 64); }

}  // namespace

MissingPages::MissingPages(std::shared_ptr<const TaskPages> pages)
    : pages_(std::move(pages)),
      bits_(new std::atomic<uint64_t>[WordsFor(pages_->pages())]),
      missing_(pages_->pages()),
      segments_({{0, {}}}) {
  for (size_t i = 0; i < WordsFor(pages_->pages()); ++i)
    bits_[i].store(~uint64_t{0}, std::memory_order_relaxed);
}

MissingPages::MissingPages(const MissingPages& parent)
    : pages_(parent.pages_),
      bits_(new std::atomic<uint64_t>[WordsFor(pages_->pages())]),
      missing_(parent.missing()),
      segments_(parent.segments_) {
  for (size_t i = 0; i < WordsFor(pages_->pages()); ++i) {
    bits_[i].store(parent.bits_[i].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

void MissingPages::Take(uint64_t number) {
  const uint64_t bit = uint64_t{1} << (number % 64);
  if ((bits_[number / 64].fetch_and(~bit, std::memory_order_relaxed) & bit) != 0) {
    missing_.fetch_sub(1, std::memory_order_relaxed);
  }
}

template <typename Visit>
void MissingPages::ForEachPart(uint64_t begin, uint64_t end, Visit visit) const {
  if (begin >= end) return;
  for (auto segment = std::prev(segments_.upper_bound(begin));
       segment != segments_.end() && segment->first < end; ++segment) {
    auto next = std::next(segment);
    const uint64_t from = std::max(begin, segment->first);
    const uint64_t to = next == segments_.end() ? end : std::min(end, next->first);
    visit(from, to, Segment{segment->second.has_pages, segment->second.image + (from - segment->first)});
  }
}

std::optional<uint64_t> MissingPages::NumberAt(uint64_t address) const {
  auto segment = std::prev(segments_.upper_bound(address));
  if (!segment->second.has_pages) return std::nullopt;
  const uint64_t image = segment->second.image + (address - segment->first);
  std::optional<size_t> run = pages_->FindRun(image);
  if (!run) return std::nullopt;
  return pages_->FirstNumberOf(*run) + (image - pages_->runs()[*run].address) / store::kPageSize;
}

std::vector<MissingPages::Place> MissingPages::PlacesOf(size_t number) const {
  const store::StoredRun& run = pages_->runs()[number];
  if (segments_.size() == 1) return {{0, run.pages, run.address}};
  const uint64_t run_end = run.address + uint64_t{run.pages} * store::kPageSize;
  std::vector<Place> places;
  for (auto segment = segments_.begin(); segment != segments_.end(); ++segment) {
    if (!segment->second.has_pages) continue;
    auto next = std::next(segment);
    const uint64_t image = segment->second.image;
    const uint64_t image_end = next == segments_.end() ? UINT64_MAX : image + (next->first - segment->first);
    const uint64_t begin = std::max(image, run.address), end = std::min(image_end, run_end);
    if (begin >= end) continue;
    places.push_back({static_cast<uint32_t>((begin - run.address) / store::kPageSize),
                      static_cast<uint32_t>((end - begin) / store::kPageSize),
                      segment->first + (begin - image)});
  }
  return places;
}

template <typename Visit>
void MissingPages::ForEachNumbers(uint64_t begin, uint64_t end, Visit visit) const {
  ForEachPart(begin, end, [&](uint64_t from, uint64_t to, const Segment& part) {
    if (!part.has_pages) return;
    const uint64_t image_end = part.image + (to - from);
    for (size_t i = pages_->FirstRunBehind(part.image); i < pages_->runs().size(); ++i) {
      const store::StoredRun& run = pages_->runs()[i];
      if (run.address >= image_end) break;
      const uint64_t first = std::max(run.address, part.image);
      const uint64_t last = std::min(run.address + uint64_t{run.pages} * store::kPageSize, image_end);
      const uint64_t number = pages_->FirstNumberOf(i);
      visit(number + (first - run.address) / store::kPageSize,
            number + (last - run.address) / store::kPageSize);
    }
  });
}

void MissingPages::Drop(uint64_t begin, uint64_t end) {
  ForEachNumbers(begin, end, [this](uint64_t first, uint64_t last) {
    for (uint64_t number = first; number < last; ++number) Take(number);
  });
}

bool MissingPages::AnyMissing(uint64_t begin, uint64_t end) const {
  bool any = false;
  ForEachNumbers(begin, end, [&](uint64_t first, uint64_t last) {
    while (!any && first < last) {
      if (first % 64 == 0 && bits_[first / 64].load(std::memory_order_relaxed) == 0) {
        first += 64;
      } else {
        any = Missing(first++);
      }
    }
  });
  return any;
}

std::vector<AddressRange> MissingPages::Ranges() const {
  std::vector<AddressRange> ranges;
  for (auto segment = segments_.begin(); segment != segments_.end(); ++segment) {
    if (!segment->second.has_pages) continue;
    auto next = std::next(segment);
    const uint64_t image = segment->second.image;
    const uint64_t image_end = next == segments_.end() ? UINT64_MAX : image + (next->first - segment->first);
    const std::vector<AddressRange>& areas = pages_->areas();
    auto area = std::upper_bound(areas.begin(), areas.end(), image,
                                 [](uint64_t address, const AddressRange& a) { return address < a.end; });
    for (; area != areas.end() && area->begin < image_end; ++area) {
      const uint64_t begin = std::max(image, area->begin), end = std::min(image_end, area->end);
      ranges.push_back({segment->first + (begin - image), segment->first + (end - image)});
    }
  }
  return ranges;
}

MissingPages::Segments::iterator MissingPages::Split(uint64_t address) {
  auto segment = std::prev(segments_.upper_bound(address));
  if (segment->first == address) return segment;
  return segments_.emplace_hint(
      std::next(segment), address,
      Segment{segment->second.has_pages, segment->second.image + (address - segment->first)});
}

void MissingPages::Move(uint64_t from, uint64_t to, uint64_t bytes) {
  if (bytes == 0 || from == to) return;
  std::vector<std::pair<uint64_t, Segment>> parts;  // by their distance from `from`
  ForEachPart(from, from + bytes,
              [&](uint64_t begin, uint64_t, const Segment& part) { parts.emplace_back(begin - from, part); });
  Drop(to, to + bytes);
  for (uint64_t begin : {from, to}) {
    Split(begin + bytes);
    auto first = Split(begin);
    first->second.has_pages = false;
    segments_.erase(std::next(first), segments_.find(begin + bytes));
  }
  for (const auto& [distance, part] : parts) segments_[to + distance] = part;
}

}  // namespace rekindle::restore
