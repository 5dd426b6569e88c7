#include "cli/client.h"

#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/error_cause.h"
#include "base/file.h"
#include "base/message_text.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"
#include "base/utf8.h"
#include "base/uuid.h"
#include "cli/endpoint.h"
#include "cli/tls_probe.h"
#include "daemon/embedded_service.h"
#include "daemon/named_calls.h"
#include "daemon/tls_files.h"
#include "daemon/told_by_daemon.h"
#include "rekindle/v1/calls.grpc.pb.h"
#include "rekindle/v1/group.grpc.pb.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::cli {
namespace {

constexpr int kNoLimit = -1;
constexpr int kProbeMs = 20'000;
// A daemon that was started anew is found so soon.
constexpr int kReconnectMs = 500;
// An older daemon does not know of it; one that hangs does not answer.
constexpr absl::Duration kTellingMayTake = absl::Seconds(5);
// A stop that is asked for is not to be lost with who has asked for it.
constexpr absl::Duration kIsHeardOfBy = absl::Seconds(1), kLookWhetherCancelled = absl::Milliseconds(100);
// A daemon needs less than a second to let go of a job, unless threads of it wait for a driver or a file
// server.
constexpr absl::Duration kGivingUpMayTake = absl::Seconds(60);
// The longest error message with its log lines, percent-encoded.
constexpr int kLargestMetadataBytes = 64 << 10;

// What is no text protobuf refuses without a word of which it is.
absl::Status CheckText(const google::protobuf::Message& request) {
  const std::optional<std::string> other = FindWhatIsNoText(request);
  if (!other) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", ToUtf8(*other),
      "' is not UTF-8, which names, references, labels and the like have to be ('?' stands for what isn't)"));
}

// Has a connection ended that was there, or was being made ("failed to connect")?
bool TellsOfItsEnd(const grpc::Status& status) {
  const std::string& why = status.error_message();
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(why, "Broken pipe") || absl::StrContains(why, "onnection reset") ||
          absl::StrContains(why, "Socket closed"));
}

// By the clock that nobody sets.
gpr_timespec FromNow(absl::Duration limit) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(limit), GPR_TIMESPAN));
}

// A place that a command looks at is not the store that the command works on: what --store names and what
// 'ckpt' would make.
absl::Status OfPlace(const absl::Status& status) {
  const absl::string_view message = status.message();
  const size_t cure = message.find(": the first 'rekindle ckpt' makes it");
  if (!IsOfNoStore(status) || cure == absl::string_view::npos) return status;
  return WithMessage(status, absl::StrCat(message.substr(0, cure),
                                          ": check the path of the place, and whether its file system "
                                          "is mounted ('rekindle copy IMAGE --to' makes a store)"));
}

// Who listens at the Unix socket; 0: nobody, or somebody of another container.
pid_t ListenerOf(const std::string& path) {
  const absl::StatusOr<UniqueFd> socket = ConnectTo(path, SOCK_NONBLOCK);
  ucred listener{};
  socklen_t size = sizeof listener;
  const bool told =
      socket.ok() && ::getsockopt(socket->get(), SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0;
  return told ? listener.pid : 0;
}

class GrpcClient final : public Client {
 public:
  GrpcClient(std::shared_ptr<grpc::Channel> channel, const Endpoint& endpoint,
             std::unique_ptr<daemon::EmbeddedService> embedded)
      : embedded_(std::move(embedded)),
        elsewhere_(endpoint.elsewhere),
        of_functions_(endpoint.of_functions),
        host_(endpoint.host),
        ca_(endpoint.tls_ca),
        certificate_(endpoint.tls_certificate),
        key_(endpoint.tls_key),
        channel_(channel),
        stub_(v1::Rekindle::NewStub(channel)),
        groups_(v1::Groups::NewStub(channel)),
        calls_(v1::Calls::NewStub(channel)) {}

  // What is left of an embedded service ends with the process.
  ~GrpcClient() override {
    {
      absl::MutexLock lock(&mutex_);
      if (embedded_ && abandoned_) embedded_->AwaitCalls();
    }
    if (embedded_) embedded_->LeaveJobs();
    static_cast<void>(embedded_.release());
  }

#define RK_UNARY_OF(stub, Name, Response, name)                                  \
  absl::StatusOr<v1::Response> Name(const v1::Name##Request& request) override { \
    RK_RETURN_IF_ERROR(CheckText(request));                                      \
    v1::Response response;                                                       \
    grpc::ClientContext context;                                                 \
    CurrentCall current(*this, &context, name);                                  \
    const grpc::Status ended = stub->Name(&context, request, &response);         \
    RK_RETURN_IF_ERROR(FromGrpc(context, ended));                                \
    return response;                                                             \
  }
#define RK_UNARY_TO(Name, Response) RK_UNARY_OF(stub_, Name, Response, "")
#define RK_UNARY(Name) RK_UNARY_TO(Name, Name##Response)
  RK_UNARY(GetVersion)
  RK_UNARY(Doctor)
  RK_UNARY(ListJobs)
  RK_UNARY(ListImages)
  RK_UNARY(InspectImage)
  RK_UNARY(DiffImages)
  RK_UNARY(RemoveImages)
  RK_UNARY(TagImage)
  RK_UNARY(DropWorkingSet)
  RK_UNARY(PruneImages)
  RK_UNARY(GetQuota)
  RK_UNARY_TO(SetQuota, GetQuotaResponse)
  RK_UNARY(CollectGarbage)
  RK_UNARY(GetStats)
  RK_UNARY_TO(TemplateUp, Template)
  RK_UNARY(TemplateDown)
  RK_UNARY(ListTemplates)
  RK_UNARY(ListGpus)
  RK_UNARY_TO(ParkGpu, GpuMoveResponse)
  RK_UNARY_OF(stub_, ResumeGpu, GpuMoveResponse, NameOfCall())
  RK_UNARY_OF(stub_, SwapGpu, GpuMoveResponse, NameOfCall())
  RK_UNARY(LeaseGpu)
  RK_UNARY(ReleaseGpu)
  RK_UNARY(InvokeFunction)
  RK_UNARY(ListFunctions)
  RK_UNARY(RemoveFunction)
  RK_UNARY(FunctionStats)
  RK_UNARY(ListDependencies)
  RK_UNARY(RemoveDependencies)
  RK_UNARY_OF(groups_, ListGroups, ListGroupsResponse, "")
  RK_UNARY_OF(groups_, RemoveGroup, RemoveGroupResponse, "")
  RK_UNARY_OF(groups_, ResolveGroup, ResolveGroupResponse, "")
#undef RK_UNARY
#undef RK_UNARY_TO
#undef RK_UNARY_OF

  absl::Status SignalJob(const v1::SignalJobRequest& request) override {
    RK_RETURN_IF_ERROR(CheckText(request));
    v1::SignalJobResponse response;
    grpc::ClientContext context;
    const grpc::Status ended = stub_->SignalJob(&context, request, &response);
    return FromGrpc(context, ended);
  }

  absl::StatusOr<v1::StopJobResponse> StopJob(const v1::StopJobRequest& request) override {
    RK_RETURN_IF_ERROR(CheckText(request));
    v1::StopJobResponse response;
    grpc::ClientContext context;
    grpc::Status ended;
    grpc::CompletionQueue queue;
    const Stopwatch waited;
    const std::unique_ptr<grpc::ClientAsyncResponseReader<v1::StopJobResponse>> call =
        stub_->AsyncStopJob(&context, request, &queue);
    call->Finish(&response, &ended, this);
    void* tag;
    bool done;
    while (queue.AsyncNext(&tag, &done, FromNow(kLookWhetherCancelled)) == grpc::CompletionQueue::TIMEOUT) {
      absl::MutexLock lock(&mutex_);
      // Not before the daemon has heard of it.
      if (cancelled_ && absl::Seconds(waited.seconds()) >= kIsHeardOfBy) context.TryCancel();
    }
    RK_RETURN_IF_ERROR(FromGrpc(context, ended));
    return response;
  }

#define RK_STREAM_OF(stub, Name, Event, name)                                                        \
  absl::Status Name(const v1::Name##Request& request, const OnEvent<v1::Event>& on_event) override { \
    RK_RETURN_IF_ERROR(CheckText(request));                                                          \
    grpc::ClientContext context;                                                                     \
    CurrentCall current(*this, &context, name);                                                      \
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader = stub->Name(&context, request);           \
    v1::Event event;                                                                                 \
    while (reader->Read(&event)) on_event(event);                                                    \
    const grpc::Status ended = reader->Finish();                                                     \
    return FromGrpc(context, ended);                                                                 \
  }
#define RK_STREAM(Name, Event) RK_STREAM_OF(stub_, Name, Event, "")
  RK_STREAM_OF(stub_, Run, JobEvent, NameOfCall())
  RK_STREAM(AttachJob, JobEvent)
  RK_STREAM(WaitForJobs, JobExit)
  RK_STREAM_OF(stub_, Restore, JobEvent, NameOfCall())
  RK_STREAM(Fsck, FsckEvent)
  RK_STREAM(ExportImage, TransferEvent)
  RK_STREAM(ImportImage, TransferEvent)
  RK_STREAM_OF(stub_, StartFromTemplate, JobEvent, NameOfCall())
  RK_STREAM(HoldGpu, LeaseGpuResponse)
  RK_STREAM(DeployFunction, DeployEvent)
  RK_STREAM(SetFunction, DeployEvent)
  RK_STREAM(FunctionLogs, FunctionLogLine)
  RK_STREAM(BuildDependencies, BuildDependenciesEvent)
  RK_STREAM_OF(stub_, Checkpoint, CheckpointEvent, NameOfCall())
  RK_STREAM_OF(groups_, CheckpointGroup, GroupEvent, NameOfCall())
  RK_STREAM_OF(groups_, RestoreGroup, GroupEvent, NameOfCall())
#undef RK_STREAM
#undef RK_STREAM_OF

  absl::Status SendImage(const v1::SendImageRequest& request,
                         const std::function<bool(const v1::SendImageEvent&)>& on_event) override {
    RK_RETURN_IF_ERROR(CheckText(request));
    grpc::ClientContext context;
    CurrentCall current(*this, &context);
    std::unique_ptr<grpc::ClientReader<v1::SendImageEvent>> reader = stub_->SendImage(&context, request);
    bool wanted = true;
    for (v1::SendImageEvent event; wanted && reader->Read(&event);) {
      wanted = on_event(event);
      if (!wanted) context.TryCancel();
    }
    const grpc::Status finished = reader->Finish();
    if (!wanted && finished.error_code() == grpc::StatusCode::CANCELLED)
      return absl::CancelledError("no more of the image was wanted");
    absl::Status status = OfStream(context, finished);
    // Whoever was to get it is this process.
    if (embedded_ && absl::IsCancelled(status))
      return absl::CancelledError("interrupted before all of the image was sent");
    return status;
  }

  absl::StatusOr<v1::NoteCopyResponse> NoteCopy(const v1::NoteCopyRequest& request) override {
    RK_RETURN_IF_ERROR(CheckText(request));
    v1::NoteCopyResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTellingMayTake));
    const grpc::Status ended = stub_->NoteCopy(&context, request, &response);
    RK_RETURN_IF_ERROR(FromGrpc(context, ended));
    return response;
  }

  std::unique_ptr<ImageReceiver> ReceiveImage(const v1::ReceiveImageBegin& begin,
                                              OnEvent<v1::Progress> on_progress) override {
    return std::make_unique<Receiver>(*this, begin, std::move(on_progress));
  }

  bool AtDaemon() const override { return !host_.empty(); }

  void AwaitConnection(absl::Duration limit) override { channel_->WaitForConnected(FromNow(limit)); }

  void Cancel() override {
    if (embedded_) embedded_->CancelCalls();
    absl::MutexLock lock(&mutex_);
    if (embedded_ && !receiving_) return;
    if (!name_.empty() && !giving_up_.joinable()) {
      asked_to_give_up_ = true;
      giving_up_ = std::thread([this, name = name_] { GiveUp(name); });
      return;
    }
    TearDown();
  }

 private:
  // For a call that has jobs stand still, or makes some, until it has put everything right.
  std::string NameOfCall() const { return embedded_ ? "" : NewUuid(); }

  // The call that Cancel means, for as long as it lives. `name`: by which the daemon is to know it; empty: by
  // none.
  class CurrentCall {
   public:
    CurrentCall(GrpcClient& client, grpc::ClientContext* context, std::string name = "") : client_(client) {
      if (!name.empty()) context->AddMetadata(daemon::NamedCalls::kMetadata, name);
      absl::MutexLock lock(&client_.mutex_);
      client_.context_ = context;
      client_.name_ = std::move(name);
      client_.asked_to_give_up_ = false;
      if (client_.cancelled_) context->TryCancel();
    }
    ~CurrentCall() {
      std::thread giving_up;
      {
        absl::MutexLock lock(&client_.mutex_);
        client_.context_ = nullptr;
        client_.name_.clear();
        giving_up.swap(client_.giving_up_);
      }
      if (giving_up.joinable()) giving_up.join();
    }

   private:
    GrpcClient& client_;
  };

  // One that is waited for must be told that nothing more comes: an embedded service, too.
  class Receiver final : public ImageReceiver {
   public:
    Receiver(GrpcClient& client, const v1::ReceiveImageBegin& begin, OnEvent<v1::Progress> on_progress)
        : client_(client),
          checked_(CheckText(begin)),
          current_(client, &context_),
          stream_(client.stub_->ReceiveImage(&context_)) {
      {
        absl::MutexLock lock(&client_.mutex_);
        client_.receiving_ = true;
      }
      v1::ReceiveImageRequest request;
      *request.mutable_begin() = begin;
      if (checked_.ok()) {
        stream_->Write(request);
      } else {
        context_.TryCancel();
      }
      events_ = std::thread([this, on_progress = std::move(on_progress)] {
        for (v1::ReceiveImageEvent event; stream_->Read(&event);) {
          if (event.has_progress()) on_progress(event.progress());
          if (event.has_result()) result_ = std::move(*event.mutable_result());
        }
        ::eventfd_write(ended_.get(), 1);
      });
    }
    ~Receiver() override {
      if (!events_.joinable()) return;
      context_.TryCancel();
      End().IgnoreError();
    }

    bool Write(std::string data) override {
      v1::ReceiveImageRequest request;
      request.set_data(std::move(data));
      return stream_->Write(request);
    }

    int ended_fd() const override { return ended_.get(); }

    absl::StatusOr<v1::ReceiveImageResult> Finish() override {
      stream_->WritesDone();
      RK_RETURN_IF_ERROR(End());
      if (!result_) return absl::InternalError("the service ended the transfer without a result");
      return *std::move(result_);
    }

   private:
    absl::Status End() {
      events_.join();
      const grpc::Status status = stream_->Finish();
      {
        absl::MutexLock lock(&client_.mutex_);
        client_.receiving_ = false;
        // The call has ended here, and maybe not yet at the service, which has to remove what it began.
        if (!status.ok()) client_.abandoned_ = true;
        if (!checked_.ok()) return checked_;
        if (client_.cancelled_ && !status.ok())
          return absl::CancelledError("interrupted; nothing of it is left");
      }
      return client_.OfStream(context_, status);
    }

    GrpcClient& client_;
    const absl::Status checked_;  // what the call begins with
    grpc::ClientContext context_;
    CurrentCall current_;
    const std::unique_ptr<grpc::ClientReaderWriter<v1::ReceiveImageRequest, v1::ReceiveImageEvent>> stream_;
    std::optional<v1::ReceiveImageResult> result_;
    const UniqueFd ended_{::eventfd(0, EFD_CLOEXEC)};
    std::thread events_;
  };

  void TearDown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    cancelled_ = true;
    if (context_) context_->TryCancel();
    if (asking_) asking_->TryCancel();
  }

  // The call that is torn down ends here at once, and at the daemon when it has put everything right. One
  // that is told to give up ends here then, too.
  void GiveUp(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_) {
    v1::GiveUpRequest request;
    request.set_call(name);
    v1::GiveUpResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kTellingMayTake));
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) return;
      asking_ = &context;
    }
    const grpc::Status told = calls_->GiveUp(&context, request, &response);
    absl::MutexLock lock(&mutex_);
    asking_ = nullptr;
    const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return context_ == nullptr; };
    if (told.ok()) AwaitUntil(mutex_, absl::Condition(&ended), Deadline(kGivingUpMayTake));
    if (!ended()) TearDown();
  }

  // `what`: has become of the call; empty: nobody said.
  absl::Status EndedMeanwhile(absl::string_view what = "") const {
    return absl::UnavailableError(
        absl::StrCat("the daemon (rekindled) at ", host_, " has ended in the middle of this call",
                     what.empty() ? "" : absl::StrCat(" (", what, ")"), ": once it is back, ",
                     of_functions_ ? "'rekindle fn ls', 'rekindle fn logs' and 'rekindle deps ls' show"
                                   : "'rekindle ps' (jobs) and 'rekindle ls' (images) show",
                     " whether what was asked for was done; if it was not, try again"));
  }

  bool Listens() const {
    const std::string socket = UnixSocketPath(host_);
    return !socket.empty() && UnixSocketAnswers(socket);
  }

  // What is to be said of one that can't answer because it was stopped; empty: it was not.
  std::string StoppedListener() const {
    const std::string socket = UnixSocketPath(host_);
    const pid_t pid = socket.empty() ? 0 : ListenerOf(socket);
    const absl::StatusOr<ProcessStat> process = ReadProcessStat(pid);
    if (pid <= 0 || !process.ok() || (process->state != 'T' && process->state != 't')) return "";
    return absl::StrCat("no answer from the daemon (rekindled) at ", host_, ": its process ", pid,
                        " is stopped (by SIGSTOP, Ctrl-Z or a debugger). Have it go on (`kill -CONT ", pid,
                        "`), then try again");
  }

  // By this machine's clock, which may be wrong: it explains, and refuses nothing.
  std::string TroubleWithCertificate() const {
    const absl::StatusOr<std::string> certificate = ReadFile(certificate_);
    return certificate.ok() ? daemon::TroubleWithDates(*certificate, absl::Now()) : "";
  }

  // Of an image on its way. A service that gives it up can't tell why: gRPC says something of its own.
  absl::Status OfStream(const grpc::ClientContext& call, const grpc::Status& status) const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Status told = FromGrpc(call, status);
    if (status.error_code() != grpc::StatusCode::CANCELLED || host_.empty()) return told;
    const bool given_up = told.message() == "Cancelled on the server side";
    if (!given_up && (!absl::IsUnavailable(told) || !Listens())) return told;
    return absl::UnavailableError(
        absl::StrCat("the daemon (rekindled) at ", host_,
                     " has given up this call, because nothing of the image moved for too long or because it "
                     "was started anew: its log says which. Try again"));
  }

  // `call` has ended with `status`.
  absl::Status FromGrpc(const grpc::ClientContext& call, const grpc::Status& status) const
      ABSL_LOCKS_EXCLUDED(mutex_) {
    if (status.ok()) {
      connected_ = true;
      return absl::OkStatus();
    }
    if (daemon::ToldByDaemon(call) ||
        (TellsOfItsEnd(status) && !absl::StrContains(status.error_message(), "failed to connect"))) {
      connected_ = true;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_ && status.error_code() == grpc::StatusCode::CANCELLED) {
        return absl::CancelledError(
            absl::StrCat("interrupted: the daemon at ", host_, " stops, and puts back what was half done"));
      }
      const std::string& told = status.error_message();
      if (asked_to_give_up_ && status.error_code() == grpc::StatusCode::CANCELLED) {
        return absl::CancelledError(
            absl::StrCat(absl::StartsWith(told, "interrupted") ? "" : "interrupted: ", told));
      }
    }
    // Nobody here has ended it, and whoever did gives no reason of his own: gRPC, of a daemon that ends.
    const std::string& why = status.error_message();
    if (!host_.empty() &&
        ((status.error_code() == grpc::StatusCode::CANCELLED && (why.empty() || why == "CANCELLED")) ||
         (status.error_code() == grpc::StatusCode::UNAVAILABLE && why == "Cancelling all calls"))) {
      return EndedMeanwhile();
    }
    absl::string_view ends = why;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !host_.empty() &&
        absl::ConsumePrefix(&ends, daemon::kRekindledEnds)) {
      return EndedMeanwhile(ends);
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !host_.empty() &&
        !daemon::ToldByDaemon(call)) {
      const bool of_tls = absl::StrContains(status.error_message(), "andshake") ||
                          absl::StrContains(status.error_message(), "certificate") ||
                          // What no connection can be made with has no addresses, for gRPC.
                          (!absl::StartsWith(host_, "unix:") &&
                           absl::StrContains(status.error_message(), "empty address list"));
      const bool listens = Listens();
      // What was being said to it when it went. Of a connection that it does not take gRPC says the same as a
      // part of another sentence.
      const bool was_there = TellsOfItsEnd(status);
      const bool over_tcp = !absl::StartsWith(host_, "unix:");
      const bool unmade = absl::StrContains(why, "failed to connect");
      if (over_tcp && unmade) {
        if (const std::string trouble = TroubleWithCertificate(); !trouble.empty()) {
          return absl::UnauthenticatedError(absl::StrCat(
              "--tls-cert: ", certificate_, " ", trouble, ": the daemon (rekindled) at ", host_,
              " does not accept it. Have it renewed, and look at this machine's clock (", why, ")"));
        }
      }
      // It goes through all of TLS before it tells what it thinks of a certificate, and tells it by going
      // away. One that has accepted it before is ending, or what is in between has nobody to pass on to.
      const bool went = was_there || absl::StrContains(why, "Endpoint read failed");
      if (went && over_tcp && unmade) {
        if (!connected_ && ProbeTls(host_, {ca_, certificate_, key_}) != TlsEnd::kAfter) {
          return absl::UnavailableError(absl::StrCat(
              "the daemon (rekindled) at ", host_,
              " could not be reached: the connection was closed before it "
              "was made: it is just ending or being started, or what passes connections on to it does not "
              "reach it. See whether it runs there, and try again (",
              why, ")"));
        }
        const std::string told = absl::StrCat(
            "the daemon (rekindled) at ", host_, " has ended the connection before it was made: ",
            connected_ ? "it is most likely being started anew, so try again; if that lasts, it"
                       : "most likely it",
            " does not accept the certificate of --tls-cert, which is expired by its clock, or of an "
            "authority that its --tls-client-ca does not have.",
            connected_ ? "" : " If it was just ending, try again", " (", why, ")");
        return connected_ ? absl::UnavailableError(told) : absl::UnauthenticatedError(told);
      }
      if (was_there && (!listens || !unmade)) return EndedMeanwhile();
      if (const std::string stopped = StoppedListener(); !stopped.empty())
        return absl::UnavailableError(stopped);
      return absl::UnavailableError(absl::StrCat(
          "no answer from the daemon (rekindled) at ", host_, ": ", status.error_message(),
          listens
              ? ": it is there now, so try again; if it does not take this connection, its log says why (one "
                "user may have so many of them)"
          : of_tls        ? ": see whether --tls-ca vouches for the daemon's certificate, and the daemon's "
                            "--tls-client-ca for --tls-cert, to which --tls-key belongs"
          : of_functions_ ? ": start it"
                          : ": start it, or work without it by naming a --store"));
    }
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
      return absl::FailedPreconditionError(
          host_.empty()
              ? "this needs the daemon (rekindled), which works on while the command has ended: start it"
              : absl::StrCat("the daemon (rekindled) at ", host_,
                             " does not know this call: it is of an older version than this command. Update "
                             "it, and start it anew"));
    }
    // The library's, of a service in this process.
    if (why == "Server Threadpool Exhausted") {
      return absl::ResourceExhaustedError(
          "no thread could be made for this call: Rekindle is at a limit of processes and threads "
          "(ulimit -u, pids.max), or of memory (ulimit -v): raise it");
    }
    const absl::Status told = daemon::WithToldCause(
        call, absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    return elsewhere_ ? OfPlace(told) : told;
  }

  std::unique_ptr<daemon::EmbeddedService> embedded_;
  const bool elsewhere_, of_functions_;
  const std::string host_, ca_, certificate_, key_;  // the latter three: their files, over TCP
  const std::shared_ptr<grpc::Channel> channel_;
  mutable std::atomic<bool> connected_ = false;  // it was at least once
  std::unique_ptr<v1::Rekindle::Stub> stub_;
  std::unique_ptr<v1::Groups::Stub> groups_;
  std::unique_ptr<v1::Calls::Stub> calls_;
  mutable absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string name_ ABSL_GUARDED_BY(mutex_);                       // of the call
  std::thread giving_up_ ABSL_GUARDED_BY(mutex_);                  // once it was told to
  grpc::ClientContext* asking_ ABSL_GUARDED_BY(mutex_) = nullptr;  // for that
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_to_give_up_ ABSL_GUARDED_BY(mutex_) = false;  // the call, by its name
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
  // What came of an image is still being put away.
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const Endpoint& endpoint) {
  if (absl::string_view path = endpoint.host; absl::ConsumePrefix(&path, "unix:")) {
    absl::ConsumePrefix(&path, "//");
    if (!absl::StartsWith(path, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("connecting to ", endpoint.host, ": write unix:///PATH, a path from the root"));
    }
    return grpc::InsecureChannelCredentials();
  }
  if (endpoint.tls_ca.empty() || endpoint.tls_certificate.empty() || endpoint.tls_key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("connecting to ", endpoint.host,
                                                   ": over TCP both sides prove who they are: give --tls-ca, "
                                                   "--tls-cert and --tls-key, or a unix:// address"));
  }
  absl::StatusOr<daemon::TlsFiles> files =
      daemon::ReadTlsFiles({"--tls-ca", endpoint.tls_ca}, {"--tls-cert", endpoint.tls_certificate},
                           {"--tls-key", endpoint.tls_key});
  if (absl::IsNotFound(files.status())) return absl::InvalidArgumentError(files.status().message());
  RK_RETURN_IF_ERROR(files.status());
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(files->ca);
  options.pem_cert_chain = std::move(files->certificate);
  options.pem_private_key = std::move(files->key);
  return grpc::SslCredentials(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Endpoint& endpoint) {
  // gRPC's own messages say nothing that our errors don't.
  gpr_set_log_function([](gpr_log_func_args*) {});
  if (endpoint.host.empty()) {
    daemon::EmbeddedOptions options;
    options.store = endpoint.store;
    options.page_cache_bytes = endpoint.page_cache_bytes;
    std::unique_ptr<daemon::EmbeddedService> embedded = daemon::StartEmbedded(options);
    if (!embedded) return absl::InternalError("the service could not be started in this process");
    std::shared_ptr<grpc::Channel> channel = embedded->channel();
    return std::make_unique<GrpcClient>(std::move(channel), endpoint, std::move(embedded));
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, Credentials(endpoint));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kNoLimit);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kLargestMetadataBytes);
  // A daemon is there or it isn't: no proxy and no second try behind the user's back.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  if (!absl::StartsWith(endpoint.host, "unix:")) {
    // A machine that has gone says nothing of it. Daemons allow a probe each 3 seconds.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kProbeMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kProbeMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  const std::string socket = UnixSocketPath(endpoint.host);
  const std::string target = socket.empty() ? endpoint.host : UnixSocketUri(socket);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(target, credentials, arguments);
  return std::make_unique<GrpcClient>(std::move(channel), endpoint, nullptr);
}

bool UnixSocketAnswers(const std::string& path) { return ConnectTo(path).ok(); }

}  // namespace rekindle::cli
