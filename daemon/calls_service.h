// Calls in work as a gRPC service (calls.proto).
#pragma once

#include <memory>

#include "daemon/grpc_service.h"
#include "daemon/named_calls.h"

namespace rekindle::daemon {

// Of those that MakeGrpcService has entered into `calls`. The result may be registered with one server;
// `node` must outlive it.
std::shared_ptr<grpc::Service> MakeCallsService(Node& node, std::shared_ptr<NamedCalls> calls,
                                                CallerResolver resolve);

}  // namespace rekindle::daemon
