// Which images to keep, by rules such as "the last of each of seven days". Pure: no I/O. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace rekindle {

// An image is kept when any of the rules keeps it. 0: there is no such rule.
struct RetentionRules {
  uint64_t keep_last = 0;      // the last of each group
  int64_t keep_within_ns = 0;  // what has not been there for longer than that
  // The last of each of so many hours, days, weeks (from Monday on), months and years, counted back from the
  // latest of them in which the group has one.
  uint64_t keep_hourly = 0, keep_daily = 0, keep_weekly = 0, keep_monthly = 0, keep_yearly = 0;
  std::vector<std::pair<std::string, std::string>> keep_labels;  // with this label, of this value

  bool empty() const;
};

// What the rules go by.
struct RetainedImage {
  std::string group;    // rules that count do so for each group by itself
  int64_t unix_ns = 0;  // of which hour, day and so on it is
  int64_t there_since_unix_ns = 0;
  const std::map<std::string, std::string>* labels = nullptr;  // null: none
};

// Why rules keep each of them, in the order given; empty: none does. Images of a group follow one another,
// the last one first. `zone`: whose days they are.
std::vector<std::vector<std::string>> ReasonsToKeep(absl::Span<const RetainedImage> images,
                                                    const RetentionRules& rules, int64_t now_unix_ns,
                                                    absl::TimeZone zone);

}  // namespace rekindle
