// Who is at the other end of an HTTP connection.
#pragma once

#include <any>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/caller.h"
#include "daemon/user_groups.h"
#include "functions/invoke_api.h"

namespace rekindle::daemon {

// By the kernel's word: of a Unix socket, or of a TCP connection of this machine with itself.
// Unauthenticated: it comes from elsewhere, and nobody vouches for it. Over TCP the user's groups are those
// of the machine's user database, which may have to be waited for. Thread-safe.
absl::StatusOr<Caller> CallerOfHttp(const functions::Peer& peer, KnownGroups& groups);

// Whose share of the connections it takes: the local user's, or the address's that it comes from. Empty:
// root's, who has none.
std::string ShareOfHttp(const functions::Peer& peer, const absl::StatusOr<std::any>& caller);

}  // namespace rekindle::daemon
