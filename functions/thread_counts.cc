#include "functions/thread_counts.h"

#include <algorithm>
#include <thread>

namespace rekindle::functions {
namespace {

// The work that callers and instances are served with is small beside what functions do themselves.
constexpr int kProcessorsPerHttpThread = 8, kMostHttpThreads = 16;
// Beyond that starts wait for each other: making sandboxes and mounts takes locks that the kernel has one of.
constexpr int kMostStarts = 32;

}  // namespace

ThreadCounts ThreadCounts::For(unsigned processors) {
  ThreadCounts counts;
  const int there = static_cast<int>(std::min(processors, 4096u));
  counts.http = std::clamp(there / kProcessorsPerHttpThread, counts.http, kMostHttpThreads);
  counts.starts = std::clamp(there, counts.starts, kMostStarts);
  return counts;
}

ThreadCounts ThreadCounts::OfThisMachine() { return For(std::thread::hardware_concurrency()); }

}  // namespace rekindle::functions
