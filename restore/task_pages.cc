#include "restore/task_pages.h"

#include <algorithm>

namespace rekindle::restore {

TaskPages::TaskPages(const std::vector<store::StoredRun>& layout, const std::vector<AddressRange>& areas,
                     Zeros zeros)
    : areas_(areas) {
  auto area = areas.begin();
  for (const store::StoredRun& run : layout) {
    while (area != areas.end() && area->end <= run.address) ++area;
    if (run.zero && zeros == Zeros::kLeaveOut) continue;
    for (auto a = area; a != areas.end() && a->begin < run.end(); ++a) {
      store::StoredRun part = run;
      part.address = std::max(run.address, a->begin);
      part.page_in_frame += static_cast<uint32_t>((part.address - run.address) / store::kPageSize);
      part.pages = static_cast<uint32_t>((std::min(run.end(), a->end) - part.address) / store::kPageSize);
      runs_.push_back(part);
      first_numbers_.push_back(pages_);
      pages_ += part.pages;
    }
  }
}

size_t TaskPages::FirstRunBehind(uint64_t address) const {
  auto found = std::upper_bound(runs_.begin(), runs_.end(), address,
                                [](uint64_t a, const store::StoredRun& run) { return a < run.end(); });
  return static_cast<size_t>(found - runs_.begin());
}

std::optional<size_t> TaskPages::FindRun(uint64_t address) const {
  const size_t run = FirstRunBehind(address);
  if (run == runs_.size() || runs_[run].address > address) return std::nullopt;
  return run;
}

size_t TaskPages::RunOfNumber(uint64_t number) const {
  auto after = std::upper_bound(first_numbers_.begin(), first_numbers_.end(), number);
  return static_cast<size_t>(after - first_numbers_.begin()) - 1;
}

}  // namespace rekindle::restore
