// What the kernel still has of the TCP connections of a job that was killed: it goes on sending what the job
// had written, for minutes where the other end does not read or is gone. A job can't get a connection back
// whose place is taken so.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dedup_store/store.h"
#include "restore/socket_diag.h"

namespace rekindle::restore {

// Ends those of the image's connections in our network namespace that are nobody's any more; the other ends
// see them reset, as the job will. FailedPrecondition, which begins with kConnectionsInUse, names those that
// can't be ended, or that a process has; DataLoss: the image is damaged. Thread-safe.
absl::Status EndLeftConnections(const store::ImageReader& image);

// Forgets connections that are over, of ports in our network namespace that the job needs, at its addresses:
// it could have none of these for a minute after its end otherwise. As far as we may, and none that must be
// another user's (KeepTheirOwn); thread-safe.
absl::Status FreePorts(const store::ImageReader& image);

// Can't two sockets have these local ends at once: one port, and one address, or any address (0.0.0.0, ::)?
bool Collide(const criu::TcpConnection& one, const criu::TcpConnection& other);

// Of the local ends that a job of this user's needs (root's: all): without those that it can't have had,
// which are for root (ports below `first_for_all`) or which a socket of another user's has now (`there`).
// Whose a connection that is over was the kernel does not know any more.
std::vector<criu::TcpConnection> KeepTheirOwn(std::vector<criu::TcpConnection> ends, uid_t user,
                                              uint16_t first_for_all, const std::vector<TcpSocket>& there);

// In the message of a restore that was refused for connections: later they may be free.
inline constexpr char kConnectionsInUse[] = "the job needs its connections back";

}  // namespace rekindle::restore
