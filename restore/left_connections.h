// What the kernel still has of the TCP connections of a job that was killed: it goes on sending what the job
// had written, for minutes where the other end does not read or is gone. A job can't get a connection back
// whose place is taken so.
#pragma once

#include "absl/status/status.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

// Ends those of the image's connections in our network namespace that are nobody's any more; the other ends
// see them reset, as the job will. FailedPrecondition, which begins with kConnectionsInUse, names those that
// can't be ended, or that a process has; DataLoss: the image is damaged. Thread-safe.
absl::Status EndLeftConnections(const store::ImageReader& image);

// Forgets connections that are over, of ports in our network namespace that the job needs: it could have none
// of these ports for a minute after its end otherwise. As far as we may; thread-safe.
absl::Status FreePorts(const store::ImageReader& image);

// In the message of a restore that was refused for connections: later they may be free.
inline constexpr char kConnectionsInUse[] = "the job needs its connections back";

}  // namespace rekindle::restore
