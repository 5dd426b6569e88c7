#include "daemon/group_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/message_text.h"
#include "base/status.h"
#include "daemon/grpc_call.h"
#include "daemon/request_check.h"
#include "rekindle/v1/group.grpc.pb.h"

namespace rekindle::daemon {
namespace {

class GroupService final : public v1::Groups::Service {
 public:
  GroupService(Node& node, Groups& groups, CallerResolver resolve, std::function<bool()> cancelled,
               std::shared_ptr<NamedCalls> calls)
      : node_(node),
        groups_(groups),
        resolve_(std::move(resolve)),
        cancelled_(std::move(cancelled)),
        calls_(std::move(calls)) {}

#define RK_UNARY(Name)                                                                 \
  grpc::Status Name(grpc::ServerContext* context, const v1::Name##Request* request,    \
                    v1::Name##Response* response) override {                           \
    const grpc::Status status = Serve(context, [&](const Call& call) -> absl::Status { \
      RK_RETURN_IF_ERROR(CheckRequest(*request));                                      \
      return groups_.Name(call, *request, response);                                   \
    });                                                                                \
    MakeText(response);                                                                \
    return status;                                                                     \
  }
  RK_UNARY(ListGroups)
  RK_UNARY(RemoveGroup)
  RK_UNARY(ResolveGroup)
  RK_UNARY(SettlePart)
  RK_UNARY(GetGroupDecision)
#undef RK_UNARY

#define RK_STREAM(Name)                                                                                \
  grpc::Status Name(grpc::ServerContext* context, const v1::Name##Request* request,                    \
                    grpc::ServerWriter<v1::GroupEvent>* writer) override {                             \
    return Serve(context, [&](const Call& call) -> absl::Status {                                      \
      RK_RETURN_IF_ERROR(node_.CheckTakesWork());                                                      \
      RK_RETURN_IF_ERROR(CheckRequest(*request));                                                      \
      return groups_.Name(call, *request,                                                              \
                          [writer](const v1::GroupEvent& event) { return WriteText(event, writer); }); \
    });                                                                                                \
  }
  RK_STREAM(CheckpointGroup)
  RK_STREAM(RestoreGroup)
#undef RK_STREAM

  grpc::Status TakePart(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::PartEvent, v1::PartRequest>* stream) override {
    return Serve(context, [&](const Call& call) -> absl::Status {
      RK_RETURN_IF_ERROR(node_.CheckTakesWork());
      return groups_.TakePart(call, BothWays<PartCaller>(context, stream));
    });
  }
  grpc::Status RestorePart(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::RestorePartEvent, v1::RestorePartRequest>* stream) override {
    return Serve(context, [&](const Call& call) -> absl::Status {
      RK_RETURN_IF_ERROR(node_.CheckTakesWork());
      return groups_.RestorePart(call, BothWays<RestorePartCaller>(context, stream));
    });
  }

 private:
  template <typename Work>
  grpc::Status Serve(grpc::ServerContext* context, const Work& work) {
    absl::StatusOr<Call> call = MakeCall(node_, resolve_, cancelled_, context);
    if (!call.ok()) return ToGrpc(call.status());
    GiveUpByName(calls_, *context, *call);
    return Guarded(context, [&] { return ForClient(node_, *call, cancelled_, work(*call)); });
  }

  template <typename Caller, typename Stream>
  static Caller BothWays(grpc::ServerContext* context, Stream* stream) {
    Caller caller;
    caller.read = [stream](auto* request) { return stream->Read(request); };
    caller.write = [stream](const auto& event) { return WriteText(event, stream); };
    caller.hang_up = [context] { context->TryCancel(); };
    return caller;
  }

  Node& node_;
  Groups& groups_;
  const CallerResolver resolve_;
  const std::function<bool()> cancelled_;
  const std::shared_ptr<NamedCalls> calls_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeGroupService(Node& node, Groups& groups, CallerResolver resolve,
                                                std::function<bool()> cancelled,
                                                std::shared_ptr<NamedCalls> calls) {
  return std::make_shared<GroupService>(node, groups, std::move(resolve), std::move(cancelled),
                                        std::move(calls));
}

}  // namespace rekindle::daemon
