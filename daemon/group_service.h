// Groups as a gRPC service.
#pragma once

#include <functional>
#include <memory>

#include "daemon/groups.h"
#include "daemon/grpc_service.h"

namespace rekindle::daemon {

// The result may be registered with one server; `node` and `groups` must outlive it. `cancelled` and `calls`
// as for MakeGrpcService.
std::shared_ptr<grpc::Service> MakeGroupService(Node& node, Groups& groups, CallerResolver resolve,
                                                std::function<bool()> cancelled,
                                                std::shared_ptr<NamedCalls> calls);

}  // namespace rekindle::daemon
