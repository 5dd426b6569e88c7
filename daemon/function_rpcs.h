// The remote procedures that have to do with functions, as those in rpcs.h.
#pragma once

#include "absl/status/status.h"
#include "daemon/call.h"
#include "daemon/node.h"
#include "rekindle/v1/functions.pb.h"

namespace rekindle::daemon {

absl::Status DeployFunction(Node& node, const Call& call, const v1::DeployFunctionRequest& request,
                            const EventSink<v1::DeployEvent>& send);
absl::Status SetFunction(Node& node, const Call& call, const v1::SetFunctionRequest& request,
                         const EventSink<v1::DeployEvent>& send);
absl::Status InvokeFunction(Node& node, const Call& call, const v1::InvokeFunctionRequest& request,
                            v1::InvokeFunctionResponse* response);
absl::Status ListFunctions(Node& node, const Call& call, const v1::ListFunctionsRequest& request,
                           v1::ListFunctionsResponse* response);
absl::Status RemoveFunction(Node& node, const Call& call, const v1::RemoveFunctionRequest& request,
                            v1::RemoveFunctionResponse* response);
absl::Status FunctionLogs(Node& node, const Call& call, const v1::FunctionLogsRequest& request,
                          const EventSink<v1::FunctionLogLine>& send);
absl::Status FunctionStats(Node& node, const Call& call, const v1::FunctionStatsRequest& request,
                           v1::FunctionStatsResponse* response);
absl::Status BuildDependencies(Node& node, const Call& call, const v1::BuildDependenciesRequest& request,
                               const EventSink<v1::BuildDependenciesEvent>& send);
absl::Status ListDependencies(Node& node, const Call& call, const v1::ListDependenciesRequest& request,
                              v1::ListDependenciesResponse* response);
absl::Status RemoveDependencies(Node& node, const Call& call, const v1::RemoveDependenciesRequest& request,
                                v1::RemoveDependenciesResponse* response);

}  // namespace rekindle::daemon
