// The pager that serves the copies which one process makes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/stoppable_thread.h"
#include "base/subprocess.h"
#include "restore/pager_client.h"

namespace rekindle::restore {

// Of a pager for whose cache nobody has said anything: a gibibyte, or a quarter of what this process's memory
// limits and the machine leave free where that is less, as it was when it was first asked for. Thread-safe.
uint64_t DefaultCacheBytes();

// Keeps a connection open itself, so that the pager and what it has in memory stay. Jobs need it for longer
// than this lives. Thread-safe.
class KeptPager {
 public:
  // `cache_bytes`: of its memory; nothing: what a running one has, or DefaultCacheBytes.
  KeptPager(std::string runtime_directory, std::optional<uint64_t> cache_bytes)
      : runtime_directory_(std::move(runtime_directory)), cache_bytes_(cache_bytes) {}

  PagerPlace PlaceFor(const std::string& store) const;
  // Starts one where none runs; once one is kept, nobody waits for that who finds one.
  absl::StatusOr<PagerClient> Connect(const PagerPlace& place) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Waits for the end of a pager that we have started, and collects it.
  struct Waiter {
    explicit Waiter(Subprocess started) : pager(std::move(started)) {}
    Subprocess pager;
    std::atomic<bool> has_ended{false};
    StoppableThread thread;
  };
  void WaitFor(Subprocess pager) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsKept() const ABSL_LOCKS_EXCLUDED(kept_mutex_);
  void Keep(std::optional<PagerClient> client) ABSL_LOCKS_EXCLUDED(kept_mutex_);

  const std::string runtime_directory_;
  const std::optional<uint64_t> cache_bytes_;
  absl::Mutex mutex_;  // of who brings one up
  std::vector<std::unique_ptr<Waiter>> waiters_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Mutex kept_mutex_;  // never held for long
  std::optional<PagerClient> kept_ ABSL_GUARDED_BY(kept_mutex_);
};

}  // namespace rekindle::restore
