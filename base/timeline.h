// What was done when, by several processes of one machine: spans on CLOCK_MONOTONIC, which all of them share.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rekindle {

// CLOCK_MONOTONIC.
int64_t MonotonicNanos();
inline double MonotonicSeconds() { return static_cast<double>(MonotonicNanos()) * 1e-9; }

struct Span {
  std::string process;  // "rekindle", "criu", "pager"
  std::string thread;   // of it; the spans of one lie within each other or one after the other
  std::string name;
  int64_t begin_ns = 0, duration_ns = 0;
  std::map<std::string, int64_t> numbers;  // what is to be known of it, such as pages

  int64_t end_ns() const { return begin_ns + duration_ns; }
  friend bool operator==(const Span& a, const Span& b) = default;
};

using Timeline = std::vector<Span>;

// From `begin_ns` until now.
Span SpanSince(int64_t begin_ns, std::string process, std::string thread, std::string name,
               std::map<std::string, int64_t> numbers = {});

// Makes the spans of each thread nest, as viewers want it: one that ends after the one that it began in is
// cut off there. Clocks of two sources (a log's and ours) can differ by microseconds.
void MakeSpansNest(Timeline* timeline);

}  // namespace rekindle
