// What one client of an HTTP server may take up: its share of connections, memory and time.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace rekindle::functions {

struct HttpLimits {
  // Further ones are told so and closed (InvokeApi), or closed at once (RuntimeApi).
  size_t connections = 256;
  // Of one caller, where callers are told apart (InvokeApi::Options::share_of): the others have some left.
  size_t connections_of_one = 64;
  // Bytes of a request's line and headers. The body's limits are the server's own.
  size_t head = 64 << 10;
  // Bytes of bodies that are being read at a time, of all connections together.
  size_t bodies = 256 << 20;
  // And of those of one caller, as with connections.
  size_t bodies_of_one = 64 << 20;
  // From a request's first byte to the end of its headers, and from there to the end of its body.
  absl::Duration head_time = absl::Seconds(10);
  absl::Duration body_time = absl::Seconds(60);
  // Until an answer has been taken by the client.
  absl::Duration write_time = absl::Seconds(60);
  // Between two requests of a connection.
  absl::Duration idle_time = absl::Seconds(75);
};

}  // namespace rekindle::functions
