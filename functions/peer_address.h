// Addresses of a connection's two ends.
#pragma once

#include "functions/invoke_api.h"

namespace rekindle::functions {

// `socket` is a connection, Unix or TCP. An end that can't be told stays empty.
Peer PeerOf(int socket);

}  // namespace rekindle::functions
