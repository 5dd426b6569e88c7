#include "daemon/open_stream_limit.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/match.h"
#include "daemon/calls_of_users.h"
#include "daemon/grpc_call.h"
#include "daemon/peer_credentials.h"

namespace rekindle::daemon {
namespace {

// Of one user.
constexpr size_t kMostReflectionStreams = 8;
constexpr size_t kMostWatches = PeerRegistry::kNumbersPerIdentity;  // one of each connection

class Limit final : public grpc::experimental::Interceptor {
 public:
  Limit(grpc::ServerContextBase* context, Node& node, const CallerResolver& resolve,
        std::shared_ptr<CallsOfUsers> streams)
      : context_(context), node_(node), resolve_(resolve), streams_(std::move(streams)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
        !Admitted())
      context_->TryCancel();
    methods->Proceed();
  }

 private:
  bool Admitted() {
    const absl::StatusOr<Caller> caller = resolve_(PeerOf(*context_));
    if (!caller.ok()) return false;
    if (node_.policy().IsAdmin(*caller)) return true;
    auto counted = streams_->Begin(caller->uid);
    if (!counted.ok()) return false;
    counted_ = *std::move(counted);
    return true;
  }

  grpc::ServerContextBase* const context_;
  Node& node_;
  const CallerResolver& resolve_;
  const std::shared_ptr<CallsOfUsers> streams_;
  std::shared_ptr<void> counted_;  // until the stream is over, and this with it
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(Node& node, CallerResolver resolve) : node_(node), resolve_(std::move(resolve)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    const bool watches = absl::string_view(info->method()) == "/grpc.health.v1.Health/Watch";
    if (!watches && !absl::StartsWith(info->method(), "/grpc.reflection.")) return nullptr;
    return new Limit(info->server_context(), node_, resolve_, watches ? watches_ : streams_);
  }

 private:
  Node& node_;
  const CallerResolver resolve_;
  const std::shared_ptr<CallsOfUsers> streams_ = std::make_shared<CallsOfUsers>(kMostReflectionStreams);
  const std::shared_ptr<CallsOfUsers> watches_ = std::make_shared<CallsOfUsers>(kMostWatches);
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeOpenStreamLimit(
    Node& node, CallerResolver resolve) {
  return std::make_unique<Factory>(node, std::move(resolve));
}

}  // namespace rekindle::daemon
