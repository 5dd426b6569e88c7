#include "daemon/orphan_collector.h"

#include <sys/prctl.h>

#include "absl/time/time.h"
#include "base/children.h"
#include "base/timed_await.h"

namespace rekindle::daemon {
namespace {

// Nothing tells that one has come.
constexpr absl::Duration kLook = absl::Milliseconds(200);
// A look that can't be misled by the number of a child from before, which costs more.
constexpr int kLooksPerFullLook = 150;

}  // namespace

OrphanCollector::OrphanCollector() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  thread_ = std::thread(&OrphanCollector::Loop, this);
}

OrphanCollector::~OrphanCollector() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void OrphanCollector::Loop() {
  for (int looks = 1;; ++looks) {
    {
      absl::MutexLock lock(&mutex_);
      if (AwaitUntil(mutex_, absl::Condition(&stopping_), Deadline(kLook))) return;
    }
    if (looks % kLooksPerFullLook == 0 || MayHaveStrays()) ReapStrays({});
  }
}

}  // namespace rekindle::daemon
