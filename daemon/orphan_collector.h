// Processes of jobs whose parents have ended come to the daemon, which collects them when they end. Where it
// is no ancestor's business, as in a container whose first process collects nobody, they would stay as
// zombies, with their numbers, and a job that needs those could not come back.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace rekindle::daemon {

// One in a process, which is a subreaper from then on. Thread-safe.
class OrphanCollector {
 public:
  OrphanCollector();
  ~OrphanCollector();
  OrphanCollector(const OrphanCollector&) = delete;
  OrphanCollector& operator=(const OrphanCollector&) = delete;

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace rekindle::daemon
