#include "base/timeline.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace rekindle {

int64_t MonotonicNanos() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Span SpanSince(int64_t begin_ns, std::string process, std::string thread, std::string name,
               std::map<std::string, int64_t> numbers) {
  Span span;
  span.process = std::move(process);
  span.thread = std::move(thread);
  span.name = std::move(name);
  span.begin_ns = begin_ns;
  span.duration_ns = std::max<int64_t>(0, MonotonicNanos() - begin_ns);
  span.numbers = std::move(numbers);
  return span;
}

void MakeSpansNest(Timeline* timeline) {
  std::stable_sort(timeline->begin(), timeline->end(), [](const Span& a, const Span& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.duration_ns > b.duration_ns;
  });
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> open;  // ends, the innermost last
  for (Span& span : *timeline) {
    std::vector<int64_t>& ends = open[{span.process, span.thread}];
    while (!ends.empty() && ends.back() <= span.begin_ns) ends.pop_back();
    if (!ends.empty() && span.end_ns() > ends.back()) span.duration_ns = ends.back() - span.begin_ns;
    ends.push_back(span.end_ns());
  }
}

}  // namespace rekindle
