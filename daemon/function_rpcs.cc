#include "daemon/function_rpcs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle::daemon {
namespace {

absl::Status NotThere(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(what, ": this daemon has no functions"));
}

}  // namespace

absl::Status DeployFunction(Node&, const Call&, const v1::DeployFunctionRequest&,
                            const EventSink<v1::DeployEvent>&) {
  return NotThere("DeployFunction");
}
absl::Status InvokeFunction(Node&, const Call&, const v1::InvokeFunctionRequest&,
                            v1::InvokeFunctionResponse*) {
  return NotThere("InvokeFunction");
}
absl::Status ListFunctions(Node&, const Call&, const v1::ListFunctionsRequest&, v1::ListFunctionsResponse*) {
  return NotThere("ListFunctions");
}
absl::Status RemoveFunction(Node&, const Call&, const v1::RemoveFunctionRequest&,
                            v1::RemoveFunctionResponse*) {
  return NotThere("RemoveFunction");
}
absl::Status FunctionLogs(Node&, const Call&, const v1::FunctionLogsRequest&,
                          const EventSink<v1::FunctionLogLine>&) {
  return NotThere("FunctionLogs");
}
absl::Status FunctionStats(Node&, const Call&, const v1::FunctionStatsRequest&, v1::FunctionStatsResponse*) {
  return NotThere("FunctionStats");
}
absl::Status BuildDependencies(Node&, const Call&, const v1::BuildDependenciesRequest&,
                               const EventSink<v1::BuildDependenciesEvent>&) {
  return NotThere("BuildDependencies");
}
absl::Status ListDependencies(Node&, const Call&, const v1::ListDependenciesRequest&,
                              v1::ListDependenciesResponse*) {
  return NotThere("ListDependencies");
}
absl::Status RemoveDependencies(Node&, const Call&, const v1::RemoveDependenciesRequest&,
                                v1::RemoveDependenciesResponse*) {
  return NotThere("RemoveDependencies");
}

}  // namespace rekindle::daemon
