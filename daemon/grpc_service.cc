#include "daemon/grpc_service.h"

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "base/message_text.h"
#include "base/status.h"
#include "daemon/grpc_call.h"
#include "daemon/request_check.h"
#include "daemon/rpcs.h"
#include "rekindle/v1/rekindle.grpc.pb.h"

namespace rekindle::daemon {
namespace {

class GrpcService final : public v1::Rekindle::Service {
 public:
  GrpcService(Node& node, CallerResolver resolve, std::function<bool()> cancelled,
              std::shared_ptr<NamedCalls> calls)
      : node_(node),
        resolve_(std::move(resolve)),
        cancelled_(std::move(cancelled)),
        calls_(std::move(calls)) {}

  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override {
    return Unary(daemon::GetVersion, context, request, response);
  }
  grpc::Status Doctor(grpc::ServerContext* context, const v1::DoctorRequest* request,
                      v1::DoctorResponse* response) override {
    return Unary(daemon::Doctor, context, request, response);
  }
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::JobEvent>* writer) override {
    return Work(daemon::Run, context, request, writer);
  }
  grpc::Status Checkpoint(grpc::ServerContext* context, const v1::CheckpointRequest* request,
                          grpc::ServerWriter<v1::CheckpointEvent>* writer) override {
    return Work(daemon::Checkpoint, context, request, writer);
  }
  grpc::Status Restore(grpc::ServerContext* context, const v1::RestoreRequest* request,
                       grpc::ServerWriter<v1::JobEvent>* writer) override {
    return Work(daemon::Restore, context, request, writer);
  }
  grpc::Status TemplateUp(grpc::ServerContext* context, const v1::TemplateUpRequest* request,
                          v1::Template* response) override {
    return Unary(daemon::TemplateUp, context, request, response);
  }
  grpc::Status TemplateDown(grpc::ServerContext* context, const v1::TemplateDownRequest* request,
                            v1::TemplateDownResponse* response) override {
    return Unary(daemon::TemplateDown, context, request, response);
  }
  grpc::Status ListTemplates(grpc::ServerContext* context, const v1::ListTemplatesRequest* request,
                             v1::ListTemplatesResponse* response) override {
    return Unary(daemon::ListTemplates, context, request, response);
  }
  grpc::Status StartFromTemplate(grpc::ServerContext* context, const v1::StartFromTemplateRequest* request,
                                 grpc::ServerWriter<v1::JobEvent>* writer) override {
    return Work(daemon::StartFromTemplate, context, request, writer);
  }
  grpc::Status SignalJob(grpc::ServerContext* context, const v1::SignalJobRequest* request,
                         v1::SignalJobResponse* response) override {
    auto signal = [](Node& node, const Call& call, const v1::SignalJobRequest& what, v1::SignalJobResponse*) {
      return daemon::SignalJob(node, call, what);
    };
    return Unary(signal, context, request, response);
  }
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return Unary(daemon::ListJobs, context, request, response);
  }
  grpc::Status StopJob(grpc::ServerContext* context, const v1::StopJobRequest* request,
                       v1::StopJobResponse* response) override {
    return Unary(daemon::StopJob, context, request, response);
  }
  grpc::Status AttachJob(grpc::ServerContext* context, const v1::AttachJobRequest* request,
                         grpc::ServerWriter<v1::JobEvent>* writer) override {
    return Stream(daemon::AttachJob, context, request, writer);
  }
  grpc::Status WaitForJobs(grpc::ServerContext* context, const v1::WaitForJobsRequest* request,
                           grpc::ServerWriter<v1::JobExit>* writer) override {
    return Stream(daemon::WaitForJobs, context, request, writer);
  }
  grpc::Status ListGpus(grpc::ServerContext* context, const v1::ListGpusRequest* request,
                        v1::ListGpusResponse* response) override {
    return Unary(daemon::ListGpus, context, request, response);
  }
  grpc::Status ParkGpu(grpc::ServerContext* context, const v1::ParkGpuRequest* request,
                       v1::GpuMoveResponse* response) override {
    return Unary(daemon::ParkGpu, context, request, response);
  }
  grpc::Status ResumeGpu(grpc::ServerContext* context, const v1::ResumeGpuRequest* request,
                         v1::GpuMoveResponse* response) override {
    return Unary(daemon::ResumeGpu, context, request, response);
  }
  grpc::Status SwapGpu(grpc::ServerContext* context, const v1::SwapGpuRequest* request,
                       v1::GpuMoveResponse* response) override {
    return Unary(daemon::SwapGpu, context, request, response);
  }
  grpc::Status LeaseGpu(grpc::ServerContext* context, const v1::LeaseGpuRequest* request,
                        v1::LeaseGpuResponse* response) override {
    return Unary(daemon::LeaseGpu, context, request, response);
  }
  grpc::Status ReleaseGpu(grpc::ServerContext* context, const v1::ReleaseGpuRequest* request,
                          v1::ReleaseGpuResponse* response) override {
    return Unary(daemon::ReleaseGpu, context, request, response, CallsOfUsers::Kind::kRelease);
  }
  grpc::Status HoldGpu(grpc::ServerContext* context, const v1::HoldGpuRequest* request,
                       grpc::ServerWriter<v1::LeaseGpuResponse>* writer) override {
    return Stream(daemon::HoldGpu, context, request, writer);
  }
  grpc::Status ListImages(grpc::ServerContext* context, const v1::ListImagesRequest* request,
                          v1::ListImagesResponse* response) override {
    return Unary(daemon::ListImages, context, request, response);
  }
  grpc::Status InspectImage(grpc::ServerContext* context, const v1::InspectImageRequest* request,
                            v1::InspectImageResponse* response) override {
    return Unary(daemon::InspectImage, context, request, response);
  }
  grpc::Status DiffImages(grpc::ServerContext* context, const v1::DiffImagesRequest* request,
                          v1::DiffImagesResponse* response) override {
    return Unary(daemon::DiffImages, context, request, response);
  }
  grpc::Status RemoveImages(grpc::ServerContext* context, const v1::RemoveImagesRequest* request,
                            v1::RemoveImagesResponse* response) override {
    return Unary(daemon::RemoveImages, context, request, response);
  }
  grpc::Status TagImage(grpc::ServerContext* context, const v1::TagImageRequest* request,
                        v1::TagImageResponse* response) override {
    return Unary(daemon::TagImage, context, request, response);
  }
  grpc::Status DropWorkingSet(grpc::ServerContext* context, const v1::DropWorkingSetRequest* request,
                              v1::DropWorkingSetResponse* response) override {
    return Unary(daemon::DropWorkingSet, context, request, response);
  }
  grpc::Status PruneImages(grpc::ServerContext* context, const v1::PruneImagesRequest* request,
                           v1::PruneImagesResponse* response) override {
    return Unary(daemon::PruneImages, context, request, response);
  }
  grpc::Status GetQuota(grpc::ServerContext* context, const v1::GetQuotaRequest* request,
                        v1::GetQuotaResponse* response) override {
    return Unary(daemon::GetQuota, context, request, response);
  }
  grpc::Status SetQuota(grpc::ServerContext* context, const v1::SetQuotaRequest* request,
                        v1::GetQuotaResponse* response) override {
    return Unary(daemon::SetQuota, context, request, response);
  }
  grpc::Status CollectGarbage(grpc::ServerContext* context, const v1::CollectGarbageRequest* request,
                              v1::CollectGarbageResponse* response) override {
    return Unary(daemon::CollectGarbage, context, request, response);
  }
  grpc::Status Fsck(grpc::ServerContext* context, const v1::FsckRequest* request,
                    grpc::ServerWriter<v1::FsckEvent>* writer) override {
    return Stream(daemon::Fsck, context, request, writer);
  }
  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::GetStatsResponse* response) override {
    return Unary(daemon::GetStats, context, request, response);
  }
  grpc::Status ExportImage(grpc::ServerContext* context, const v1::ExportImageRequest* request,
                           grpc::ServerWriter<v1::TransferEvent>* writer) override {
    return Stream(daemon::ExportImage, context, request, writer);
  }
  grpc::Status ImportImage(grpc::ServerContext* context, const v1::ImportImageRequest* request,
                           grpc::ServerWriter<v1::TransferEvent>* writer) override {
    return Work(daemon::ImportImage, context, request, writer);
  }
  grpc::Status SendImage(grpc::ServerContext* context, const v1::SendImageRequest* request,
                         grpc::ServerWriter<v1::SendImageEvent>* writer) override {
    return Stream(daemon::SendImage, context, request, writer);
  }
  grpc::Status ReceiveImage(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ReceiveImageEvent, v1::ReceiveImageRequest>* stream) override {
    absl::StatusOr<Call> call = MakeCall(node_, resolve_, cancelled_, context);
    if (!call.ok()) return ToGrpc(call.status());
    GiveUpByName(calls_, *context, *call);
    return Guarded(context, [&]() -> absl::Status {
      RK_RETURN_IF_ERROR(node_.CheckTakesWork());
      const absl::Status received = daemon::ReceiveImage(
          node_, *call, [stream](v1::ReceiveImageRequest* request) { return stream->Read(request); },
          [stream](const v1::ReceiveImageEvent& event) { return WriteText(event, stream); });
      return ForClient(node_, *call, cancelled_, received);
    });
  }
  grpc::Status NoteCopy(grpc::ServerContext* context, const v1::NoteCopyRequest* request,
                        v1::NoteCopyResponse* response) override {
    return Unary(daemon::NoteCopy, context, request, response);
  }
  grpc::Status SetFunction(grpc::ServerContext* context, const v1::SetFunctionRequest* request,
                           grpc::ServerWriter<v1::DeployEvent>* writer) override {
    return Work(daemon::SetFunction, context, request, writer);
  }
  grpc::Status DeployFunction(grpc::ServerContext* context, const v1::DeployFunctionRequest* request,
                              grpc::ServerWriter<v1::DeployEvent>* writer) override {
    return Work(daemon::DeployFunction, context, request, writer);
  }
  grpc::Status InvokeFunction(grpc::ServerContext* context, const v1::InvokeFunctionRequest* request,
                              v1::InvokeFunctionResponse* response) override {
    return Unary(daemon::InvokeFunction, context, request, response);
  }
  grpc::Status ListFunctions(grpc::ServerContext* context, const v1::ListFunctionsRequest* request,
                             v1::ListFunctionsResponse* response) override {
    return Unary(daemon::ListFunctions, context, request, response);
  }
  grpc::Status RemoveFunction(grpc::ServerContext* context, const v1::RemoveFunctionRequest* request,
                              v1::RemoveFunctionResponse* response) override {
    return Unary(daemon::RemoveFunction, context, request, response);
  }
  grpc::Status FunctionLogs(grpc::ServerContext* context, const v1::FunctionLogsRequest* request,
                            grpc::ServerWriter<v1::FunctionLogLine>* writer) override {
    return Stream(daemon::FunctionLogs, context, request, writer);
  }
  grpc::Status FunctionStats(grpc::ServerContext* context, const v1::FunctionStatsRequest* request,
                             v1::FunctionStatsResponse* response) override {
    return Unary(daemon::FunctionStats, context, request, response);
  }
  grpc::Status BuildDependencies(grpc::ServerContext* context, const v1::BuildDependenciesRequest* request,
                                 grpc::ServerWriter<v1::BuildDependenciesEvent>* writer) override {
    return Work(daemon::BuildDependencies, context, request, writer);
  }
  grpc::Status ListDependencies(grpc::ServerContext* context, const v1::ListDependenciesRequest* request,
                                v1::ListDependenciesResponse* response) override {
    return Unary(daemon::ListDependencies, context, request, response);
  }
  grpc::Status RemoveDependencies(grpc::ServerContext* context, const v1::RemoveDependenciesRequest* request,
                                  v1::RemoveDependenciesResponse* response) override {
    return Unary(daemon::RemoveDependencies, context, request, response);
  }

 private:
  template <typename Procedure, typename Request, typename Response>
  grpc::Status Unary(Procedure procedure, grpc::ServerContext* context, const Request* request,
                     Response* response, CallsOfUsers::Kind kind = CallsOfUsers::Kind::kAny) {
    absl::StatusOr<Call> call = MakeCall(node_, resolve_, cancelled_, context, kind);
    if (!call.ok()) return ToGrpc(call.status());
    GiveUpByName(calls_, *context, *call);
    const grpc::Status status = Guarded(context, [&]() -> absl::Status {
      RK_RETURN_IF_ERROR(CheckRequest(*request));
      return ForClient(node_, *call, cancelled_, procedure(node_, *call, *request, response));
    });
    MakeText(response);
    return status;
  }

  // A stream with which something begins that may take as long as it likes: a job that began while last
  // images are taken would be in none.
  template <typename Procedure, typename Request, typename Event>
  grpc::Status Work(Procedure procedure, grpc::ServerContext* context, const Request* request,
                    grpc::ServerWriter<Event>* writer) {
    const auto begin = [&](Node& node, const Call& call, const Request& asked,
                           const EventSink<Event>& send) -> absl::Status {
      RK_RETURN_IF_ERROR(node.CheckTakesWork());
      return procedure(node, call, asked, send);
    };
    return Stream(begin, context, request, writer);
  }

  template <typename Procedure, typename Request, typename Event>
  grpc::Status Stream(Procedure procedure, grpc::ServerContext* context, const Request* request,
                      grpc::ServerWriter<Event>* writer) {
    absl::StatusOr<Call> call = MakeCall(node_, resolve_, cancelled_, context);
    if (!call.ok()) return ToGrpc(call.status());
    GiveUpByName(calls_, *context, *call);
    return Guarded(context, [&]() -> absl::Status {
      RK_RETURN_IF_ERROR(CheckRequest(*request));
      return ForClient(node_, *call, cancelled_,
                       procedure(node_, *call, *request,
                                 [writer](const Event& event) { return WriteText(event, writer); }));
    });
  }

  Node& node_;
  const CallerResolver resolve_;
  const std::function<bool()> cancelled_;
  const std::shared_ptr<NamedCalls> calls_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeGrpcService(Node& node, CallerResolver resolve,
                                               std::function<bool()> cancelled,
                                               std::shared_ptr<NamedCalls> calls) {
  return std::make_shared<GrpcService>(node, std::move(resolve), std::move(cancelled), std::move(calls));
}

}  // namespace rekindle::daemon
