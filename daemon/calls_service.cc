#include "daemon/calls_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "daemon/grpc_call.h"
#include "daemon/request_check.h"
#include "rekindle/v1/calls.grpc.pb.h"

namespace rekindle::daemon {
namespace {

class CallsService final : public v1::Calls::Service {
 public:
  CallsService(Node& node, std::shared_ptr<NamedCalls> calls, CallerResolver resolve)
      : node_(node), calls_(std::move(calls)), resolve_(std::move(resolve)) {}

  grpc::Status GiveUp(grpc::ServerContext* context, const v1::GiveUpRequest* request,
                      v1::GiveUpResponse*) override {
    static const std::function<bool()> kNever;
    // Who has all of his calls in work can have them end still.
    absl::StatusOr<Call> call = MakeCall(node_, resolve_, kNever, context, CallsOfUsers::Kind::kRelease);
    if (!call.ok()) return ToGrpc(call.status());
    return Guarded(context, [&]() -> absl::Status {
      RK_RETURN_IF_ERROR(CheckRequest(*request));
      if (calls_->GiveUp(call->caller.uid, request->call())) return absl::OkStatus();
      return absl::NotFoundError(
          absl::StrCat("giving up call '", request->call(), "': you have none of that name in work"));
    });
  }

 private:
  Node& node_;
  const std::shared_ptr<NamedCalls> calls_;
  const CallerResolver resolve_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeCallsService(Node& node, std::shared_ptr<NamedCalls> calls,
                                                CallerResolver resolve) {
  return std::make_shared<CallsService>(node, std::move(calls), std::move(resolve));
}

}  // namespace rekindle::daemon
