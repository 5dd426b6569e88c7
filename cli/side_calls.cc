#include "cli/side_calls.h"

#include "absl/status/status.h"
#include "base/parallel.h"

namespace rekindle::cli {

void SideCalls::Begin(std::function<void()> call) {
  const absl::Status begun = CatchNoMoreThreads([&] {
    absl::MutexLock lock(&mutex_);
    threads_.emplace_back(call);
    return absl::OkStatus();
  });
  if (!begun.ok()) call();
}

void SideCalls::AwaitAll() {
  for (;;) {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace rekindle::cli
