// Which images to keep and which to remove. Pure: no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dedup_store/store.h"

namespace rekindle::store {

// An image is kept when any of the rules keeps it.
struct RetentionRules {
  uint64_t keep_last = 0;      // the last committed of each group; 0: no such rule
  int64_t keep_within_ns = 0;  // not stored longer ago than that; 0: no such rule
  std::vector<std::pair<std::string, std::string>> keep_labels;  // with this label, of this value

  bool empty() const { return keep_last == 0 && keep_within_ns == 0 && keep_labels.empty(); }
};

struct RetentionDecision {
  ImageInfo image;
  bool keep = true;
  std::vector<std::string> reasons;  // of all rules that keep it; empty: none does
};

// The name of "name:tag". The images of one owner with one name are a group.
std::string NameOfReference(const std::string& reference);

// Groups by name, then by owner; within a group the last committed first. Without any rule everything is
// kept.
std::vector<RetentionDecision> DecideRetention(std::vector<ImageInfo> images, const RetentionRules& rules,
                                               int64_t now_unix_ns);

}  // namespace rekindle::store
