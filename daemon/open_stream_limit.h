// gRPC's own services ask nobody who calls. Each open stream of the reflection service has a thread of the
// daemon, each Watch of the health service some memory.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "daemon/grpc_service.h"
#include "daemon/node.h"

namespace rekindle::daemon {

// For grpc::ServerBuilder: cancels a user's streams of these beyond a few. An administrator's are not
// counted. `node` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeOpenStreamLimit(
    Node& node, CallerResolver resolve);

}  // namespace rekindle::daemon
