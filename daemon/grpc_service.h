// The remote procedures of rpcs.h as a gRPC service.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/caller.h"
#include "daemon/named_calls.h"
#include "daemon/node.h"

namespace grpc {
class Service;
}

namespace rekindle::daemon {

// What gRPC knows of the other end of a connection.
struct Peer {
  std::string address;           // ServerContext::peer()
  std::string certificate_name;  // the common name of the client's verified certificate; "": no TLS
};

// Unauthenticated when nobody vouches for the peer. Called on any thread.
using CallerResolver = std::function<absl::StatusOr<Caller>(const Peer& peer)>;

// The result may be registered with one server; `node` must outlive it. `cancelled`, when given, tells every
// call that it is to give up, as a client's own cancellation does. `calls`, when given, has those that have a
// name.
std::shared_ptr<grpc::Service> MakeGrpcService(Node& node, CallerResolver resolve,
                                               std::function<bool()> cancelled = nullptr,
                                               std::shared_ptr<NamedCalls> calls = nullptr);

}  // namespace rekindle::daemon
