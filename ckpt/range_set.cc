#include "ckpt/range_set.h"

#include <algorithm>
#include <iterator>

namespace rekindle::ckpt {

std::vector<AddressRange> RangeSet::Add(const AddressRange& range) {
  std::vector<AddressRange> added;
  uint64_t at = range.start;
  auto it = ranges_.upper_bound(at);
  if (it != ranges_.begin() && std::prev(it)->second > at) at = std::prev(it)->second;
  while (at < range.end) {
    const uint64_t until = it == ranges_.end() ? range.end : std::min(range.end, it->first);
    if (at < until) {
      added.push_back({at, until});
      ranges_[at] = until;
    }
    if (it == ranges_.end()) break;
    at = std::max(until, it->second);
    ++it;
  }
  return added;
}

std::vector<AddressRange> RangeSet::Within(const AddressRange& range) const {
  std::vector<AddressRange> found;
  auto it = ranges_.upper_bound(range.start);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < range.end; ++it) {
    const AddressRange part{std::max(range.start, it->first), std::min(range.end, it->second)};
    if (part.start >= part.end) continue;
    if (!found.empty() && found.back().end == part.start) {
      found.back().end = part.end;
    } else {
      found.push_back(part);
    }
  }
  return found;
}

std::vector<AddressRange> RangeSet::Ranges() const { return Within({0, UINT64_MAX}); }

}  // namespace rekindle::ckpt
