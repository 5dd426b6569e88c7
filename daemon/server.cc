#include "daemon/server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_posix.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "daemon/background_scrub.h"
#include "daemon/calls_of_users.h"
#include "daemon/calls_service.h"
#include "daemon/functions.h"
#include "daemon/group_service.h"
#include "daemon/groups.h"
#include "daemon/grpc_service.h"
#include "daemon/http_listener.h"
#include "daemon/left_jobs.h"
#include "daemon/lost_clients.h"
#include "daemon/metrics.h"
#include "daemon/metrics_http.h"
#include "daemon/open_stream_limit.h"
#include "daemon/peer_credentials.h"
#include "daemon/supervisor.h"
#include "daemon/tcp_listener.h"
#include "daemon/tls_files.h"
#include "daemon/tls_refusals.h"
#include "daemon/unix_listener.h"
#include "daemon/user_groups.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::daemon {
namespace {

// Everybody may connect: what a caller may do is decided for each call, by who they are.
constexpr mode_t kSocketMode = 0666;
// The payload of an invocation may have 6 MB, more than gRPC takes by itself.
constexpr int kLargestRequestBytes = 16 << 20;
constexpr int kLargestMetadataBytes = 64 << 10;
// Of all connections together, while they are being received. Beyond it streams are refused.
constexpr size_t kMostMessageBytes = size_t{512} << 20;
// Calls in work on one connection; more wait for their turn at the client, who is not told. Above what a user
// may have at all, who is then told, and what the parts of groups and the leases of one orchestrator need.
constexpr int kMostCallsOfConnection = 1000;
static_assert(kMostCallsOfConnection > CallsOfUsers::kMostOfOne);
constexpr unsigned kLookAtTlsFilesSeconds = 5;
// Of TCP, until whoever makes a connection has proved who they are.
constexpr absl::Duration kHandshakeMayTake = absl::Seconds(20);
// Of calls, at the daemon's end, before they are cancelled.
constexpr absl::Duration kGivingUpMayTake = absl::Seconds(2), kLookForCalls = absl::Milliseconds(50);

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsCredentials(const TlsOptions& tls) {
  if (tls.certificate.empty() || tls.key.empty() || tls.client_ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("listening on ", tls.listen,
                     ": TCP is served with mutual TLS only: give --tls-cert, --tls-key and "
                     "--tls-client-ca"));
  }
  RK_ASSIGN_OR_RETURN(const TlsFiles now,
                      ReadTlsFiles({"--tls-client-ca", tls.client_ca}, {"--tls-cert", tls.certificate},
                                   {"--tls-key", tls.key}));
  if (const std::string trouble = TroubleWithDates(now.certificate, absl::Now()); !trouble.empty()) {
    Log(LogLevel::kWarning,
        absl::StrCat(
            "--tls-cert: ", tls.certificate, " ", trouble,
            ": no client connects until there is one that is valid; a renewed file is read by itself"));
  }
  // Certificates that live for a day are renewed in place. Half of a renewal is none: the last whole one
  // stays.
  const auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      tls.key, tls.certificate, tls.client_ca, kLookAtTlsFilesSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(files);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

// Of the process, as gRPC's log is.
TlsRefusals& Refused() {
  static auto& refused = *new TlsRefusals(kHandshakeMayTake);
  return refused;
}

void LogOfGrpc(absl::string_view words) {
  static auto& sparing = *new SparingLog();
  Log(LogLevel::kDebug, absl::StrCat("grpc: ", words));
  if (const std::string refusal = Refused().Explain(words); !refusal.empty())
    sparing(LogLevel::kWarning, refusal);
}

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(ServerOptions options) : options_(std::move(options)), node_(options_.node) {}

  ~GrpcServer() override { Stop(absl::ZeroDuration()); }

  absl::Status Begin() {
    RaiseDescriptorLimit();
    RK_RETURN_IF_ERROR(node_.MakeRuntimeDirectory());
    RK_RETURN_IF_ERROR(node_.OpenStore(Node::Access::kCreate).status());
    node_.RecoverJobs();

    // Else the end of the last server would be that of the library, which waits for up to 10 s for a thread
    // of its own that polls on behalf of a connection whose bytes nobody takes any more.
    grpc_init();
    gpr_set_log_function([](gpr_log_func_args* entry) {
      if (entry->severity == GPR_LOG_SEVERITY_ERROR) LogOfGrpc(entry->message);
    });
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    RK_RETURN_IF_ERROR(StartFunctions());
    if (absl::Status begun = node_.supervisor().Begin(); !begun.ok())
      Log(LogLevel::kWarning, absl::StrCat("no jobs are supervised for now: ", begun.message()));
    WatchLeftJobs(node_);
    const CallerResolver resolve = [this](const Peer& peer) { return Resolve(peer); };
    const auto calls = std::make_shared<NamedCalls>();
    const std::function<bool()> given_up = [this] { return MonotonicNanos() >= give_up_at_ns_.load(); };
    service_ = MakeGrpcService(node_, resolve, given_up, calls);
    TcpSockets tcp;
    grpc::ServerBuilder builder;
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(MakeOpenStreamLimit(node_, resolve));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    builder.SetResourceQuota(grpc::ResourceQuota("rekindled").Resize(kMostMessageBytes));
    builder.RegisterService(service_.get());
    groups_ = std::make_unique<Groups>(node_, GroupPeers());
    group_service_ = MakeGroupService(node_, *groups_, resolve, given_up, calls);
    builder.RegisterService(group_service_.get());
    calls_service_ = MakeCallsService(node_, calls, resolve);
    builder.RegisterService(calls_service_.get());
    // Other daemons probe connections over which nothing comes.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(kPeerProbe / 2)));
    // So do clients that have no call in work, or they would be thrown out for it.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(kLargestRequestBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kLargestMetadataBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCallsOfConnection);
    if (!options_.tls.listen.empty()) {
      RK_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials, TlsCredentials(options_.tls));
      RK_ASSIGN_OR_RETURN(tcp, ListenOnTcp(options_.tls.listen));
      tcp_port_ = tcp.port;
      tcp_connections_.emplace(MostTcpConnections());
      // It takes connections for as long as there are descriptors, and none any more once there were none.
      tcp_acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
      builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                                 static_cast<int>(absl::ToInt64Milliseconds(kHandshakeMayTake)));
    }
    server_ = builder.BuildAndStart();
    if (!server_) return absl::UnavailableError("gRPC does not start");
    server_->GetHealthCheckService()->SetServingStatus(v1::Rekindle::service_full_name(), true);
    if (tcp_port_ != 0) {
      if (absl::Status noticed = NoticeLostClients(tcp_port_); !noticed.ok())
        Log(LogLevel::kWarning, absl::StrCat("lost clients are not noticed: ", noticed.message()));
      RK_ASSIGN_OR_RETURN(tcp_listener_,
                          AcceptLoop::Start(std::move(tcp.sockets), [this](UniqueFd connection) {
                            TakeOverTcp(std::move(connection));
                          }));
    }
    RK_ASSIGN_OR_RETURN(listener_,
                        UnixListener::Start(options_.socket, kSocketMode, options_.node.store,
                                            [this](UniqueFd connection) { Take(std::move(connection)); }));
    groups_->Start();
    if (!options_.metrics.empty()) {
      RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenForHttp(options_.metrics, "--metrics"));
      RK_ASSIGN_OR_RETURN(metrics_,
                          MetricsHttp::Start(std::move(listener), [this] { return MetricsText(node_); }));
    }
    if (options_.scrub_period <= absl::ZeroDuration()) return absl::OkStatus();
    scrub_ = std::make_unique<BackgroundScrub>([this] { return node_.OpenStore(Node::Access::kWrite); },
                                               options_.scrub_period);
    return absl::OkStatus();
  }

  void Stop(absl::Duration grace) override {
    node_.TakeNoMoreWork();
    if (auto functions = node_.functions(); functions.ok()) (*functions)->TakeNoMore();
    if (server_) server_->GetHealthCheckService()->SetServingStatus(false);
    // Last images and calls in work have it together.
    const Deadline deadline(grace);
    if (server_ && grace > absl::ZeroDuration()) {
      groups_->YieldJobs();
      node_.supervisor().CheckpointAll(grace);
      node_.supervisor().AwaitCopies(deadline);
    }
    give_up_at_ns_ = MonotonicNanos() + absl::ToInt64Nanoseconds(deadline.left());
    node_.BeginStopping();
    // Until now whoever asks is told that the daemon ends, and how far it is.
    metrics_.reset();
    if (tcp_listener_) tcp_listener_->Stop();
    if (listener_) listener_->Stop();
    if (server_) {
      EndCalls(deadline);
    }
    if (auto functions = node_.functions(); functions.ok()) (*functions)->AwaitCalls(deadline);
    server_.reset();
    scrub_.reset();  // not before: it may be waiting for a gc that somebody has called
    node_.supervisor().Leave();
    if (groups_) groups_->Stop();
    node_.NoFunctions(absl::UnavailableError("the daemon is ending"));
    listener_.reset();  // the next daemon finds all of it free
  }

  void WarmUp() override { node_.WarmUp(); }

  void CheckpointJobs() override {
    groups_->YieldJobs();
    node_.supervisor().CheckpointAll(absl::InfiniteDuration());
  }

  int tcp_port() const override { return tcp_port_; }

 private:
  // Those of ours have until `deadline`, and then a moment to say that they are given up: what gRPC cancels
  // can't. What else there is (watches of its health service, calls whose message does not come) is not
  // waited for.
  void EndCalls(const Deadline& deadline) {
    const Deadline last(deadline.left() + kGivingUpMayTake);
    absl::Notification ended;
    InParallel(2, [&](size_t part) {
      if (part == 1) {
        server_->Shutdown(absl::ToChronoTime(absl::Now() + last.left()));
        ended.Notify();
        return;
      }
      // What a call has come to is on its way for a moment after it has ended.
      bool none_before = false;
      while (!last.passed() && !ended.WaitForNotificationWithTimeout(kLookForCalls)) {
        const bool none = !node_.calls().AnyInWork();
        if (none && none_before) grpc_server_cancel_all_calls(server_->c_server());
        none_before = none;
      }
    });
    server_->Wait();
  }

  GroupPeerOptions GroupPeers() const {
    GroupPeerOptions peers;
    peers.socket = options_.socket;
    peers.address = options_.advertise;
    peers.certificate = options_.tls.certificate;
    peers.key = options_.tls.key;
    peers.ca = options_.tls.client_ca;
    return peers;
  }

  absl::Status StartFunctions() {
    std::vector<UniqueFd> listeners;
    for (const std::string& address : options_.functions_http) {
      RK_ASSIGN_OR_RETURN(UniqueFd listener, ListenForHttp(address, "--functions-http"));
      listeners.push_back(std::move(listener));
    }
    auto functions = Functions::Start(node_);
    if (functions.ok() && !listeners.empty()) {
      RK_RETURN_IF_ERROR((*functions)->ServeHttp(std::move(listeners), options_.functions_limits));
    }
    if (!functions.ok()) {
      if (!listeners.empty()) return functions.status();
      Log(LogLevel::kWarning, absl::StrCat("there are no functions: ", functions.status().message()));
    }
    if (functions.ok()) {
      node_.SetFunctions(*std::move(functions));
    } else {
      node_.NoFunctions(functions.status());
    }
    return absl::OkStatus();
  }

  // On the listener's thread.
  void Take(UniqueFd connection) {
    absl::StatusOr<Caller> caller = ReadPeerCredentials(connection.get());
    if (!caller.ok()) return Log(LogLevel::kWarning, caller.status().message());
    const bool administrator = node_.policy().IsAdmin(*caller);
    absl::StatusOr<UniqueFd> admitted =
        peers_.Admit(std::move(connection), *std::move(caller), administrator);
    if (!admitted.ok()) return refused_(LogLevel::kWarning, admitted.status().message());
    grpc::AddInsecureChannelFromFd(server_.get(), admitted->Release());
  }

  // On that listener's thread.
  void TakeOverTcp(UniqueFd connection) {
    if (const absl::Status may = tcp_connections_->Admit(connection.get()); !may.ok())
      return refused_(LogLevel::kWarning, may.message());
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
    accepted.fd = connection.Release();
    Refused().Begins(accepted.fd);
    tcp_acceptor_->HandleNewConnection(&accepted);
  }

  absl::StatusOr<Caller> Resolve(const Peer& peer) const {
    if (std::optional<Caller> caller = peers_.Find(peer.address)) return *std::move(caller);
    if (!peer.certificate_name.empty()) return CallerFromCertificate(peer.certificate_name);
    return absl::UnauthenticatedError(absl::StrCat("nobody vouches for the caller at ", peer.address,
                                                   ": use the Unix socket, or a TLS client certificate"));
  }

  const ServerOptions options_;
  Node node_;
  PeerRegistry peers_;
  SparingLog refused_;
  std::atomic<int64_t> give_up_at_ns_{INT64_MAX};  // of CLOCK_MONOTONIC: what is in work then, at the end
  std::unique_ptr<Groups> groups_;
  std::shared_ptr<grpc::Service> service_, group_service_, calls_service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tcp_acceptor_;
  std::optional<TcpConnections> tcp_connections_;  // of the listener's thread
  std::unique_ptr<AcceptLoop> tcp_listener_;
  std::unique_ptr<UnixListener> listener_;
  std::unique_ptr<BackgroundScrub> scrub_;
  std::unique_ptr<MetricsHttp> metrics_;
  int tcp_port_ = 0;
};

}  // namespace

absl::StatusOr<Caller> CallerFromCertificate(absl::string_view common_name) {
  Caller caller;
  caller.kind = Caller::Kind::kRemote;
  caller.uid = static_cast<uid_t>(-1);
  caller.gid = static_cast<gid_t>(-1);
  if (common_name == "admin") {
    caller.admin_certificate = true;
    caller.uid = ::geteuid();
    caller.gid = ::getegid();
    return caller;
  }
  absl::string_view number = common_name;
  uint32_t uid = 0;
  if (!absl::ConsumePrefix(&number, "uid:") ||
      !std::all_of(number.begin(), number.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(number, &uid)) {
    return absl::UnauthenticatedError(absl::StrCat("the client's certificate is for '", common_name,
                                                   "': its common name must be \"admin\" or \"uid:N\""));
  }
  caller.uid = uid;
  std::optional<UserGroups> user = GroupsOfUser(uid);
  if (!user.has_value()) {
    return absl::UnauthenticatedError(absl::StrCat("the client's certificate is for uid ", uid,
                                                   ", which this machine does not know: add the user"));
  }
  caller.gid = user->group;
  caller.groups = std::move(user->groups);
  return caller;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  auto server = std::make_unique<GrpcServer>(std::move(options));
  RK_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace rekindle::daemon
