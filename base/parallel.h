// Work that is shared by several threads and must be done where there can be no more threads too.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <system_error>

#include "absl/status/status.h"

namespace rekindle {

// Calls part(i) once for each i below `count` and returns when all have: part(0) on the calling thread, the
// others on threads of their own. Where the kernel makes no more threads (a limit of processes is reached),
// the remaining parts run on the calling thread, one after the other: so no part may wait for another one to
// begin. What a part throws is thrown again when all have ended: the first part's, if there are several.
void InParallel(size_t count, const std::function<void(size_t i)>& part);

// Many small pieces of work that mostly wait, for a disk say: calls `work(i)` once for each i below `count`,
// from up to `most_threads` threads.
template <typename Work>
void ForEachInParallel(size_t count, size_t most_threads, const Work& work) {
  // A thread costs as much as some of them that need not wait.
  constexpr size_t kWorthAThread = 8;
  std::atomic<size_t> next{0};
  InParallel(std::max<size_t>(1, std::min(most_threads, count / kWorthAThread)), [&](size_t) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
  });
}

// What std::thread throws where the kernel makes no more threads, as ResourceExhausted that says what to do.
absl::Status NoMoreThreads(const std::system_error& error);

// What `work` returns, a Status or StatusOr, or NoMoreThreads. For threads that have to go on: nobody catches
// what one throws.
template <typename Work>
auto CatchNoMoreThreads(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::system_error& error) {
    return NoMoreThreads(error);
  }
}

}  // namespace rekindle
