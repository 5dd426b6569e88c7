#include "daemon/group_peers.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/unix_socket.h"
#include "daemon/grpc_call.h"
#include "daemon/told_by_daemon.h"
#include "rekindle/v1/group.grpc.pb.h"

namespace rekindle::daemon {
namespace {

// That a member can't be reached is not to look as if this daemon could not be.
absl::Status OfPeer(const std::string& host, const grpc::ClientContext& call, const grpc::Status& ended) {
  const absl::Status status = WithToldCause(call, FromGrpc(ended));
  if (absl::IsUnimplemented(status) && status.message().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the daemon at ", host.empty() ? "this node" : host,
                                                      " does not know this call: it is of an older version. "
                                                      "Update it, and start it anew"));
  }
  if (!absl::IsUnavailable(status)) return status;
  return absl::AbortedError(
      absl::StrCat("the daemon at ", host.empty() ? "this node" : host,
                   ToldByDaemon(call) ? " says: " : " can't be reached: ", status.message()));
}

template <typename Request, typename Event>
class GrpcStream final : public PeerStream<Request, Event> {
 public:
  using Stream = grpc::ClientReaderWriter<Request, Event>;
  using Open = std::function<std::unique_ptr<Stream>(grpc::ClientContext*)>;

  GrpcStream(std::string host, Open open, Request first)
      : host_(std::move(host)), open_(std::move(open)), first_(std::move(first)) {}
  ~GrpcStream() override {
    context_.TryCancel();
    // gRPC wants every call to be finished.
    if (stream_ && !finished_) {
      Event event;
      while (stream_->Read(&event)) {
      }
      stream_->Finish();
    }
  }

  bool Read(Event* event) override {
    if (!stream_) Connect();
    return stream_->Read(event);
  }
  bool Write(const Request& request) override {
    absl::MutexLock lock(&writing_);
    if (!stream_) context_.TryCancel();
    return stream_ && !ended_ && stream_->Write(request);
  }
  void End() override {
    absl::MutexLock lock(&writing_);
    if (!stream_) context_.TryCancel();
    if (stream_ && !ended_) stream_->WritesDone();
    ended_ = true;
  }
  void Cancel() override { context_.TryCancel(); }
  absl::Status Finish() override {
    finished_ = true;
    return OfPeer(host_, context_, stream_->Finish());
  }

 private:
  // Returns when there is a connection, or can be none.
  void Connect() {
    std::unique_ptr<Stream> stream = open_(&context_);
    absl::MutexLock lock(&writing_);
    stream_ = std::move(stream);
    if (!ended_) stream_->Write(first_);
  }

  const std::string host_;
  const Open open_;
  const Request first_;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;  // set once, by the thread that reads, under the mutex
  absl::Mutex writing_;
  bool ended_ ABSL_GUARDED_BY(writing_) = false;
  bool finished_ = false;
};

class GrpcPeer final : public GroupPeer {
 public:
  GrpcPeer(std::string host, const std::shared_ptr<grpc::Channel>& channel)
      : host_(std::move(host)), stub_(v1::Groups::NewStub(channel)) {}

  std::unique_ptr<PartStream> TakePart(v1::PartRequest first) override {
    return std::make_unique<GrpcStream<v1::PartRequest, v1::PartEvent>>(
        host_, [this](grpc::ClientContext* context) { return stub_->TakePart(context); }, std::move(first));
  }
  std::unique_ptr<RestoreStream> RestorePart(v1::RestorePartRequest first) override {
    return std::make_unique<GrpcStream<v1::RestorePartRequest, v1::RestorePartEvent>>(
        host_, [this](grpc::ClientContext* context) { return stub_->RestorePart(context); },
        std::move(first));
  }
  absl::StatusOr<v1::SettlePartResponse> SettlePart(const v1::SettlePartRequest& request) override {
    v1::SettlePartResponse response;
    RK_RETURN_IF_ERROR(Call("settling", [&](grpc::ClientContext* context) {
      return stub_->SettlePart(context, request, &response);
    }));
    return response;
  }
  absl::StatusOr<v1::GetGroupDecisionResponse> GetGroupDecision(
      const v1::GetGroupDecisionRequest& request) override {
    v1::GetGroupDecisionResponse response;
    RK_RETURN_IF_ERROR(Call("asking for the decision", [&](grpc::ClientContext* context) {
      return stub_->GetGroupDecision(context, request, &response);
    }));
    return response;
  }

 private:
  template <typename Work>
  absl::Status Call(const char* what, const Work& work) const {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPeerCallMayTake));
    const grpc::Status ended = work(&context);
    return Annotate(OfPeer(host_, context, ended),
                    absl::StrCat(what, " at ", host_.empty() ? "this daemon" : host_));
  }

  const std::string host_;
  const std::unique_ptr<v1::Groups::Stub> stub_;
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const GroupPeerOptions& options,
                                                                      const std::string& host) {
  if (host.empty()) return grpc::InsecureChannelCredentials();
  if (options.certificate.empty() || options.key.empty() || options.ca.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "connecting to the daemon at ", host,
        ": daemons prove to each other who they are: start this one with --tls-cert, --tls-key and "
        "--tls-client-ca"));
  }
  grpc::SslCredentialsOptions files;
  RK_ASSIGN_OR_RETURN(files.pem_root_certs, ReadFile(options.ca));
  RK_ASSIGN_OR_RETURN(files.pem_cert_chain, ReadFile(options.certificate));
  RK_ASSIGN_OR_RETURN(files.pem_private_key, ReadFile(options.key));
  return grpc::SslCredentials(files);
}

}  // namespace

absl::StatusOr<std::shared_ptr<GroupPeer>> ConnectToPeer(const GroupPeerOptions& options,
                                                         const std::string& host) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, Credentials(options, host));
  const int probe_ms = static_cast<int>(absl::ToInt64Milliseconds(kPeerProbe));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, probe_ms);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, probe_ms);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // What was done with each of a job's files comes as one message.
  arguments.SetMaxReceiveMessageSize(-1);
  // A connection of its own each time: one that was given up must not make the next call wait for its turn.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const std::string target = host.empty() ? UnixSocketUri(options.socket) : host;
  return std::make_shared<GrpcPeer>(host, grpc::CreateCustomChannel(target, credentials, arguments));
}

}  // namespace rekindle::daemon
