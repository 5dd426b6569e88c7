// gRPC's own reflection service gives each open stream a thread of the daemon, and asks nobody who calls.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "daemon/grpc_service.h"
#include "daemon/node.h"

namespace rekindle::daemon {

// For grpc::ServerBuilder: cancels a user's streams of it beyond a few. An administrator's are not counted.
// `node` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeReflectionLimit(
    Node& node, CallerResolver resolve);

}  // namespace rekindle::daemon
