// Connections over TCP whose other end is a machine that has gone: without this a call waits for it for ever,
// with all that it holds.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// Of all connections that this process accepts on a TCP port from now on: the kernel probes those that are
// silent, and ends them when nothing has come for `patience` (seconds, at least 8), whether something is on
// its way to the other end or not. A client that is stopped answers, its kernel does; it is given up when it
// has had no room for so long for what is sent to it. NotFound: nothing of this process listens there.
absl::Status NoticeLostClients(int port, absl::Duration patience = absl::Minutes(2));

}  // namespace rekindle::daemon
