// Handshakes of TLS that failed: clients over TCP that were not let in, and other nodes of a group that this
// one has called. gRPC closes such connections and says why to its log alone, without saying which they were.
#pragma once

#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/open_descriptor.h"

namespace rekindle::daemon {

// Thread-safe.
class TlsRefusals {
 public:
  // `patience`: how long a handshake may take.
  explicit TlsRefusals(absl::Duration patience) : patience_(patience) {}

  // A connection that is about to prove who it is.
  void Begins(int connection) ABSL_LOCKS_EXCLUDED(mutex_);

  // What to log where `words` are gRPC's of a handshake that has failed: why, who has connected of late, and
  // what can be done. Empty: they are of something else.
  std::string Explain(absl::string_view words) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Known {
    OpenDescriptor connection;
    std::string address;
    absl::Time began;  // of SteadyNow()
  };

  const absl::Duration patience_;
  absl::Mutex mutex_;
  std::deque<Known> known_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace rekindle::daemon
