// Which images to keep and which to remove. Pure: no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/retention.h"
#include "dedup_store/store.h"

namespace rekindle::store {

struct RetentionDecision {
  ImageInfo image;
  bool keep = true;
  std::vector<std::string> reasons;  // of all rules that keep it; empty: none does
};

// Groups by name, then by owner; within a group the last committed first. Without any rule everything is
// kept. `zone`: whose days and weeks count.
std::vector<RetentionDecision> DecideRetention(std::vector<ImageInfo> images, const RetentionRules& rules,
                                               int64_t now_unix_ns, absl::TimeZone zone);

}  // namespace rekindle::store
