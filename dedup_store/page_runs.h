// A set of pages of one pack, as runs. Adding a run again and again takes no more memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rekindle::store {

class PageRuns {
 public:
  struct Run {
    uint32_t first, end;
  };

  // An empty run is none.
  void Add(uint32_t first, uint32_t end) {
    if (first >= end) return;
    runs_.push_back({first, end});
    if (runs_.size() < merge_at_) return;
    Merge();
    merge_at_ = std::max(kLeast, 2 * runs_.size());
  }
  size_t held() const { return runs_.size(); }
  // In order, with gaps between them.
  const std::vector<Run>& Merged() {
    Merge();
    return runs_;
  }

 private:
  static constexpr size_t kLeast = 64;

  void Merge() {
    if (runs_.size() == merged_) return;
    std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
    size_t kept = 0;
    for (const Run& run : runs_) {
      if (kept > 0 && run.first <= runs_[kept - 1].end) {
        runs_[kept - 1].end = std::max(runs_[kept - 1].end, run.end);
      } else {
        runs_[kept++] = run;
      }
    }
    runs_.resize(kept);
    merged_ = kept;
  }

  std::vector<Run> runs_;
  size_t merged_ = 0;  // of runs_, from its beginning
  size_t merge_at_ = kLeast;
};

}  // namespace rekindle::store
