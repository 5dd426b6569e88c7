#include "restore/working_set.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dedup_store/coding.h"

namespace rekindle::restore {

using store::kPageSize;

namespace {

constexpr char kWorkingSetMagic[] = {'R', 'K', 'W', 'S'};
constexpr uint64_t kWorkingSetVersion = 3;
constexpr uint64_t kVersionWithoutEnd = 2;
constexpr uint64_t kVersionWithoutTime = 1;
constexpr uint64_t kMaxNameBytes = 4096;
constexpr uint64_t kEndOfPages = uint64_t{1} << 52;  // of 2^64 bytes
constexpr uint64_t kMaxRunPages = std::numeric_limits<uint32_t>::max();

// Of a run's first number: the low bits say what is as it was with the run before.
constexpr uint64_t kSameObject = 1, kSameRecent = 2;
constexpr int kFlagBits = 2;

// Page numbers of one object.
class PageIntervals {
 public:
  // Gives those of [first, end) that are not there yet, in ascending order, and puts them in.
  template <typename F>
  void Add(uint64_t first, uint64_t end, const F& fresh) {
    auto it = ends_.upper_bound(first);
    if (it != ends_.begin() && std::prev(it)->second >= first) --it;
    uint64_t begin = first, last = end;
    for (; it != ends_.end() && it->first <= end; it = ends_.erase(it)) {
      if (first < std::min(it->first, end)) fresh(first, it->first);
      first = std::max(first, it->second);
      begin = std::min(begin, it->first);
      last = std::max(last, it->second);
    }
    if (first < end) fresh(first, end);
    if (begin < last) ends_[begin] = last;
  }

 private:
  std::map<uint64_t, uint64_t> ends_;  // by first page
};

}  // namespace

// A working set in the making: takes each page once.
class TouchedRunList {
 public:
  void Append(absl::string_view object, uint64_t first_page, uint64_t end_page, uint8_t recent) {
    if (first_page >= end_page) return;
    auto [known, fresh] = positions_.try_emplace(std::string(object), static_cast<uint32_t>(pages_.size()));
    if (fresh) {
      set_.objects.emplace_back(object);
      pages_.emplace_back();
    }
    const uint32_t position = known->second;
    pages_[position].Add(first_page, end_page, [&](uint64_t first, uint64_t end) {
      for (; first < end; first += std::min(end - first, kMaxRunPages)) {
        AppendRun({position, first * kPageSize, static_cast<uint32_t>(std::min(end - first, kMaxRunPages)),
                   recent});
      }
    });
  }
  WorkingSet Take(uint32_t recordings) {
    set_.recordings = recordings;
    return std::move(set_);
  }

 private:
  void AppendRun(const TouchedRun& run) {
    if (!set_.runs.empty()) {
      TouchedRun& last = set_.runs.back();
      const bool continues =
          run.address > last.address && run.address - last.address == uint64_t{last.pages} * kPageSize;
      if (continues && last.object == run.object && last.recent == run.recent &&
          uint64_t{last.pages} + run.pages <= kMaxRunPages) {
        last.pages += run.pages;
        return;
      }
    }
    set_.runs.push_back(run);
  }

  WorkingSet set_;
  absl::flat_hash_map<std::string, uint32_t> positions_;
  std::vector<PageIntervals> pages_;
};

uint64_t WorkingSet::pages() const {
  uint64_t pages = 0;
  for (const TouchedRun& run : runs) pages += run.pages;
  return pages;
}

// docs/store-format.md describes it.
std::string WorkingSet::Encode() const {
  store::Encoder encoder;
  encoder.Raw(kWorkingSetMagic, sizeof kWorkingSetMagic);
  const uint64_t version = end != RecordingEnd::kUnknown ? kWorkingSetVersion
                           : recorded_unix_ns != 0       ? kVersionWithoutEnd
                                                         : kVersionWithoutTime;
  encoder.Varint(version);
  encoder.Varint(recordings);
  if (version != kVersionWithoutTime) encoder.Signed(recorded_unix_ns);
  if (version == kWorkingSetVersion) encoder.U8(static_cast<uint8_t>(end));
  encoder.Varint(objects.size());
  for (const std::string& object : objects) encoder.String(object);
  encoder.Varint(runs.size());
  std::vector<uint64_t> ends(objects.size());  // where the last run of each object ended
  uint32_t object = 0;
  uint8_t recent = 1;
  for (const TouchedRun& run : runs) {
    const bool same_object = run.object == object, same_recent = run.recent == recent;
    encoder.Varint(uint64_t{run.pages} << kFlagBits | (same_object ? kSameObject : 0) |
                   (same_recent ? kSameRecent : 0));
    if (!same_object) encoder.Varint(run.object);
    if (!same_recent) encoder.U8(run.recent);
    const uint64_t first = run.address / kPageSize;
    encoder.Signed(static_cast<int64_t>(first - ends[run.object]));
    ends[run.object] = first + run.pages;
    object = run.object;
    recent = run.recent;
  }
  return encoder.Take();
}

absl::StatusOr<WorkingSet> WorkingSet::Decode(absl::string_view bytes) {
  const auto damaged = absl::DataLossError("the working set is damaged");
  store::Decoder decoder(bytes);
  if (decoder.View(sizeof kWorkingSetMagic) != absl::string_view(kWorkingSetMagic, sizeof kWorkingSetMagic))
    return damaged;
  const uint64_t version = decoder.Varint();
  if (decoder.ok() && version > kWorkingSetVersion) {
    return absl::FailedPreconditionError("the working set is of a newer Rekindle");
  }
  const uint64_t recordings = decoder.Varint();
  const int64_t recorded_unix_ns = version == kVersionWithoutTime ? 0 : decoder.Signed();
  const uint8_t recording_end = version == kWorkingSetVersion ? decoder.U8() : 0;
  if (recording_end > static_cast<uint8_t>(RecordingEnd::kEnded)) return damaged;
  const uint64_t object_count = decoder.Varint();
  if (!decoder.ok() || recordings > std::numeric_limits<uint32_t>::max() ||
      object_count > decoder.remaining()) {
    return damaged;
  }
  std::vector<std::string> names;
  for (uint64_t i = 0; i < object_count; ++i) {
    const uint64_t size = decoder.Varint();
    if (size == 0 || size > kMaxNameBytes) return damaged;
    names.emplace_back(decoder.View(size));
    if (!decoder.ok()) return damaged;
  }
  const uint64_t run_count = decoder.Varint();
  if (!decoder.ok() || run_count > decoder.remaining() / 2) return damaged;
  TouchedRunList list;
  std::vector<uint64_t> ends(names.size());
  uint64_t object = 0;
  uint8_t recent = 1;
  for (uint64_t i = 0; i < run_count; ++i) {
    const uint64_t head = decoder.Varint();
    const uint64_t pages = head >> kFlagBits;
    if (!(head & kSameObject)) object = decoder.Varint();
    if (!(head & kSameRecent)) recent = decoder.U8();
    const int64_t step = decoder.Signed();
    if (!decoder.ok() || object >= names.size() || recent == 0 || pages == 0 || pages > kMaxRunPages) {
      return damaged;
    }
    const uint64_t first = ends[object] + static_cast<uint64_t>(step);
    if (first >= kEndOfPages || first + pages > kEndOfPages) return damaged;
    list.Append(names[object], first, first + pages, recent);
    ends[object] = first + pages;
  }
  WorkingSet set = list.Take(static_cast<uint32_t>(recordings));
  set.recorded_unix_ns = recorded_unix_ns;
  set.end = static_cast<RecordingEnd>(recording_end);
  // Runs that overlap, names without runs or twice, numbers written longer than they are: nobody wrote that.
  if (!decoder.AtEnd() || set.Encode() != bytes) return damaged;
  return set;
}

WorkingSetRecorder::WorkingSetRecorder() : list_(std::make_unique<TouchedRunList>()) {}
WorkingSetRecorder::~WorkingSetRecorder() = default;

void WorkingSetRecorder::Add(absl::string_view object, uint64_t address, uint64_t pages) {
  const uint64_t first = address / kPageSize;
  list_->Append(object, first, first + pages, 1);
}

WorkingSet WorkingSetRecorder::Take() {
  WorkingSet set = list_->Take(1);
  list_ = std::make_unique<TouchedRunList>();
  return set;
}

WorkingSet Merge(const WorkingSet& older, const WorkingSet& newer) {
  struct Known {
    uint64_t end = 0;
    uint8_t recent = 0;
  };
  absl::flat_hash_map<std::string, std::map<uint64_t, Known>> known;  // by object and first page
  for (const TouchedRun& run : older.runs) {
    const uint64_t first = run.address / kPageSize;
    known[older.objects[run.object]][first] = {first + run.pages, run.recent};
  }
  TouchedRunList list;
  for (const TouchedRun& run : newer.runs) {
    const std::string& object = newer.objects[run.object];
    const std::map<uint64_t, Known>& before = known[object];
    uint64_t page = run.address / kPageSize;
    const uint64_t end = page + run.pages;
    auto it = before.upper_bound(page);
    if (it != before.begin() && std::prev(it)->second.end > page) --it;
    for (; page < end; ++it) {
      const uint64_t next = it == before.end() ? end : std::min(end, it->first);
      list.Append(object, page, std::max(page, next), 1);
      page = std::max(page, next);
      if (it == before.end() || page >= end) break;
      const uint64_t shared_end = std::min(end, it->second.end);
      list.Append(object, page, shared_end, static_cast<uint8_t>(it->second.recent << 1 | 1));
      page = std::max(page, shared_end);
    }
  }
  for (const TouchedRun& run : older.runs) {
    const auto recent = static_cast<uint8_t>(run.recent << 1);
    if (recent == 0) continue;
    const uint64_t first = run.address / kPageSize;
    list.Append(older.objects[run.object], first, first + run.pages, recent);
  }
  const uint64_t recordings = uint64_t{older.recordings} + newer.recordings;
  WorkingSet merged =
      list.Take(static_cast<uint32_t>(std::min<uint64_t>(recordings, std::numeric_limits<uint32_t>::max())));
  merged.recorded_unix_ns = newer.recorded_unix_ns;
  merged.end = newer.end;
  return merged;
}

WorkingSet Clip(const WorkingSet& set,
                const std::function<std::vector<store::PageRun>(absl::string_view)>& pages_of) {
  std::vector<std::vector<store::PageRun>> present;
  for (const std::string& object : set.objects) present.push_back(pages_of(object));
  TouchedRunList list;
  for (const TouchedRun& run : set.runs) {
    const std::vector<store::PageRun>& pages = present[run.object];
    const uint64_t first = run.address / kPageSize, end = first + run.pages;
    auto it = std::partition_point(pages.begin(), pages.end(), [&](const store::PageRun& p) {
      return p.address / kPageSize + p.pages <= first;
    });
    for (; it != pages.end() && it->address / kPageSize < end; ++it) {
      const uint64_t begin = it->address / kPageSize;
      list.Append(set.objects[run.object], std::max(first, begin), std::min(end, begin + it->pages),
                  run.recent);
    }
  }
  WorkingSet clipped = list.Take(set.recordings);
  clipped.recorded_unix_ns = set.recorded_unix_ns;
  clipped.end = set.end;
  return clipped;
}

}  // namespace rekindle::restore
