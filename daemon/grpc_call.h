// What the gRPC services share: who calls, and statuses on the wire. For their implementations alone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/message_text.h"
#include "daemon/call.h"
#include "daemon/grpc_service.h"
#include "daemon/named_calls.h"

namespace rekindle::daemon {

// Long messages are cut: they travel in a header field.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// At the other end of a call.
Peer PeerOf(const grpc::ServerContextBase& context);

// `cancelled` may be null. The result is valid for as long as `context` and `cancelled`.
absl::StatusOr<Call> MakeCall(Node& node, const CallerResolver& resolve,
                              const std::function<bool()>& cancelled, grpc::ServerContext* context,
                              CallsOfUsers::Kind kind = CallsOfUsers::Kind::kAny);

// Has `call`, from MakeCall, given up as well where its client has given it a name, and gives up the call of
// that name. `calls` may be null: there is no service that could be told.
void GiveUpByName(const std::shared_ptr<NamedCalls>& calls, const grpc::ServerContext& context, Call& call);

// False when nobody listens any more.
template <typename Event, typename Writer>
bool WriteText(const Event& event, Writer* writer) {
  if (IsText(event)) return writer->Write(event);
  Event text = event;
  MakeText(&text);
  return writer->Write(text);
}

// What a call has come to, for its client: Unavailable where the daemon's end has cancelled what the client
// has not. `cancelled` as for MakeCall.
absl::Status ForClient(const Node& node, const Call& call, const std::function<bool()>& cancelled,
                       const absl::Status& status);

// Runs `work` for the call of `context`, whose client is told what its error was made of. The standard
// library throws where the kernel makes no more threads or gives no more memory: ResourceExhausted.
grpc::Status Guarded(grpc::ServerContext* context, const std::function<absl::Status()>& work);

}  // namespace rekindle::daemon
