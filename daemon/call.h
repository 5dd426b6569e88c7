// What the implementation of a remote procedure knows of its call: gRPC stays outside.
#pragma once

#include <functional>

#include "daemon/caller.h"

namespace rekindle::daemon {

struct Call {
  Caller caller;
  // Has the client gone or cancelled? To be asked by one thread at a time.
  std::function<bool()> cancelled;
};

// Sends one message of a stream; false when nobody listens any more. May block while the client is slow:
// never call it where a job stands still.
template <typename Event>
using EventSink = std::function<bool(const Event&)>;

}  // namespace rekindle::daemon
