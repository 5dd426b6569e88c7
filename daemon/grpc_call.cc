#include "daemon/grpc_call.h"

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status.h"
#include "daemon/told_by_daemon.h"

namespace rekindle::daemon {
namespace {

// A status travels in a header field, percent-encoded: a whole CRIU log would be refused by the transport.
// Clients take 8 KiB of fields, unless told otherwise.
constexpr size_t kLongestMessage = 4096, kLongestEncoded = 6144;

// The most of a message that gets there, whole characters.
absl::string_view WhatFits(absl::string_view message) {
  size_t encoded = 0, fits = 0;
  for (size_t i = 0; i < message.size() && i < kLongestMessage; ++i) {
    const unsigned char byte = static_cast<unsigned char>(message[i]);
    if ((byte & 0xC0) != 0x80) fits = i;
    encoded += byte >= 0x20 && byte < 0x7F && byte != '%' ? 1 : 3;
    if (encoded > kLongestEncoded) return message.substr(0, fits);
  }
  return message.size() <= kLongestMessage ? message : message.substr(0, fits);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message(WhatFits(status.message()));
  if (message.size() < status.message().size()) absl::StrAppend(&message, "…");
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

Peer PeerOf(const grpc::ServerContextBase& context) {
  Peer peer;
  peer.address = context.peer();
  std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth && auth->IsPeerAuthenticated()) {
    std::vector<grpc::string_ref> names = auth->FindPropertyValues("x509_common_name");
    if (names.size() == 1) peer.certificate_name.assign(names[0].data(), names[0].size());
  }
  return peer;
}

absl::StatusOr<Call> MakeCall(Node& node, const CallerResolver& resolve,
                              const std::function<bool()>& cancelled, grpc::ServerContext* context,
                              CallsOfUsers::Kind kind) {
  context->AddTrailingMetadata(kToldByDaemonMetadata, kTellsCauses);
  absl::StatusOr<Caller> caller = resolve(PeerOf(*context));
  if (!caller.ok()) return caller.status();
  Call call;
  if (node.policy().IsAdmin(*caller)) {
    call.counted = node.calls().BeginOfAdministrator();
  } else {
    RK_ASSIGN_OR_RETURN(call.counted, node.calls().Begin(caller->uid, kind));
  }
  node.RecoverJobs();
  call.caller = *std::move(caller);
  call.abandon = [context] { context->TryCancel(); };
  call.cancelled = [&cancelled, context] { return context->IsCancelled() || (cancelled && cancelled()); };
  return call;
}

void GiveUpByName(const std::shared_ptr<NamedCalls>& calls, const grpc::ServerContext& context, Call& call) {
  const auto name = context.client_metadata().find(NamedCalls::kMetadata);
  if (calls == nullptr || name == context.client_metadata().end()) return;
  call.cancelled = [gives_up = calls->Begin(call.caller.uid, {name->second.data(), name->second.size()}),
                    cancelled = std::move(call.cancelled)] { return *gives_up || cancelled(); };
}

absl::Status ForClient(const Node& node, const Call& call, const std::function<bool()>& cancelled,
                       const absl::Status& status) {
  if (!absl::IsCancelled(status) || !node.stopping()) return status;
  const bool by_daemon = cancelled && cancelled();
  if (!by_daemon && call.cancelled()) return status;
  return absl::UnavailableError(absl::StrCat(kRekindledEnds, status.message()));
}

grpc::Status Guarded(grpc::ServerContext* context, const std::function<absl::Status()>& work) {
  const absl::Status ended = CatchNoMoreThreads([&]() -> absl::Status {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          "there is no memory left for this call: raise the limit of what Rekindle may have (ulimit -v, "
          "MemoryMax= of rekindled's unit), or end something");
    }
  });
  TellCause(ended, context);
  return ToGrpc(ended);
}

}  // namespace rekindle::daemon
