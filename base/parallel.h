// Many small pieces of work that mostly wait, for a disk say, done by several threads at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace rekindle {

// Calls `work(i)` once for each i below `count`, from up to `most_threads` threads, the caller's among them;
// returns when all are done.
template <typename Work>
void ForEachInParallel(size_t count, size_t most_threads, const Work& work) {
  std::atomic<size_t> next{0};
  auto run = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
  };
  // A thread costs as much as some dozens of such pieces that need not wait.
  constexpr size_t kWorthAThread = 8;
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(most_threads, count / kWorthAThread); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace rekindle
