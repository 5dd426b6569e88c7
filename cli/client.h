// The API as the commands use it: plain messages and statuses, gRPC hidden.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rekindle/v1/group.pb.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Where the service is. Exactly one of `host` and `store` is set.
struct Endpoint {
  std::string host;                          // "unix:///path", "unix:path" or "name:port" (TLS)
  std::string store;                         // hosted in this process, on this store
  std::optional<uint64_t> page_cache_bytes;  // then: of a pager; see daemon::NodeOptions
  bool elsewhere = false;                    // a place that a command copies to or looks at
  bool of_functions = false;                 // the command is one of `fn` or `deps`
  std::string no_daemon;  // what says that none is asked, "$REKINDLE_STORE"; empty: none was there
  std::string warning;    // for whoever chose none; empty: there is nothing to tell
  std::string tls_ca, tls_certificate, tls_key;  // files, for "name:port"
};

// An image on its way to a service. Not thread-safe.
class ImageReceiver {
 public:
  virtual ~ImageReceiver() = default;
  // Blocks while the service is busy. False: it wants no more; Finish says why.
  virtual bool Write(std::string data) = 0;
  // Readable when it wants no more: whoever waits for what to write next looks at this, too.
  virtual int ended_fd() const = 0;
  // Of all that was written, or as much as was wanted. Cancelled: Client::Cancel was called.
  virtual absl::StatusOr<v1::ReceiveImageResult> Finish() = 0;
};

// One call at a time; Cancel may come from any thread.
class Client {
 public:
  // Does not wait for a server: the first call tells whether one answers.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Endpoint& endpoint);
  virtual ~Client() = default;

  virtual absl::StatusOr<v1::GetVersionResponse> GetVersion(const v1::GetVersionRequest& request) = 0;
  virtual absl::StatusOr<v1::DoctorResponse> Doctor(const v1::DoctorRequest& request) = 0;
  virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) = 0;
  virtual absl::StatusOr<v1::ListImagesResponse> ListImages(const v1::ListImagesRequest& request) = 0;
  virtual absl::StatusOr<v1::InspectImageResponse> InspectImage(const v1::InspectImageRequest& request) = 0;
  virtual absl::StatusOr<v1::DiffImagesResponse> DiffImages(const v1::DiffImagesRequest& request) = 0;
  virtual absl::StatusOr<v1::RemoveImagesResponse> RemoveImages(const v1::RemoveImagesRequest& request) = 0;
  virtual absl::StatusOr<v1::TagImageResponse> TagImage(const v1::TagImageRequest& request) = 0;
  virtual absl::StatusOr<v1::DropWorkingSetResponse> DropWorkingSet(
      const v1::DropWorkingSetRequest& request) = 0;
  virtual absl::StatusOr<v1::PruneImagesResponse> PruneImages(const v1::PruneImagesRequest& request) = 0;
  virtual absl::StatusOr<v1::GetQuotaResponse> GetQuota(const v1::GetQuotaRequest& request) = 0;
  virtual absl::StatusOr<v1::GetQuotaResponse> SetQuota(const v1::SetQuotaRequest& request) = 0;
  virtual absl::StatusOr<v1::CollectGarbageResponse> CollectGarbage(
      const v1::CollectGarbageRequest& request) = 0;
  virtual absl::StatusOr<v1::GetStatsResponse> GetStats(const v1::GetStatsRequest& request) = 0;
  virtual absl::StatusOr<v1::Template> TemplateUp(const v1::TemplateUpRequest& request) = 0;
  virtual absl::StatusOr<v1::TemplateDownResponse> TemplateDown(const v1::TemplateDownRequest& request) = 0;
  virtual absl::StatusOr<v1::ListTemplatesResponse> ListTemplates(
      const v1::ListTemplatesRequest& request) = 0;
  virtual absl::StatusOr<v1::ListGpusResponse> ListGpus(const v1::ListGpusRequest& request) = 0;
  virtual absl::StatusOr<v1::GpuMoveResponse> ParkGpu(const v1::ParkGpuRequest& request) = 0;
  virtual absl::StatusOr<v1::GpuMoveResponse> ResumeGpu(const v1::ResumeGpuRequest& request) = 0;
  virtual absl::StatusOr<v1::GpuMoveResponse> SwapGpu(const v1::SwapGpuRequest& request) = 0;
  virtual absl::StatusOr<v1::LeaseGpuResponse> LeaseGpu(const v1::LeaseGpuRequest& request) = 0;
  virtual absl::StatusOr<v1::ReleaseGpuResponse> ReleaseGpu(const v1::ReleaseGpuRequest& request) = 0;
  virtual absl::StatusOr<v1::InvokeFunctionResponse> InvokeFunction(
      const v1::InvokeFunctionRequest& request) = 0;
  virtual absl::StatusOr<v1::ListFunctionsResponse> ListFunctions(
      const v1::ListFunctionsRequest& request) = 0;
  virtual absl::StatusOr<v1::RemoveFunctionResponse> RemoveFunction(
      const v1::RemoveFunctionRequest& request) = 0;
  virtual absl::StatusOr<v1::FunctionStatsResponse> FunctionStats(
      const v1::FunctionStatsRequest& request) = 0;
  virtual absl::StatusOr<v1::ListDependenciesResponse> ListDependencies(
      const v1::ListDependenciesRequest& request) = 0;
  virtual absl::StatusOr<v1::RemoveDependenciesResponse> RemoveDependencies(
      const v1::RemoveDependenciesRequest& request) = 0;
  virtual absl::StatusOr<v1::ListGroupsResponse> ListGroups(const v1::ListGroupsRequest& request) = 0;
  virtual absl::StatusOr<v1::RemoveGroupResponse> RemoveGroup(const v1::RemoveGroupRequest& request) = 0;
  virtual absl::StatusOr<v1::ResolveGroupResponse> ResolveGroup(const v1::ResolveGroupRequest& request) = 0;
  // Also while another call is in work, from any thread.
  virtual absl::Status SignalJob(const v1::SignalJobRequest& request) = 0;
  virtual absl::StatusOr<v1::StopJobResponse> StopJob(const v1::StopJobRequest& request) = 0;

  // Each event is given to `on_event` as it comes; the status says how the call ended.
  template <typename Event>
  using OnEvent = std::function<void(const Event&)>;
  virtual absl::Status Run(const v1::RunRequest& request, const OnEvent<v1::JobEvent>& on_event) = 0;
  virtual absl::Status AttachJob(const v1::AttachJobRequest& request,
                                 const OnEvent<v1::JobEvent>& on_event) = 0;
  virtual absl::Status WaitForJobs(const v1::WaitForJobsRequest& request,
                                   const OnEvent<v1::JobExit>& on_event) = 0;
  virtual absl::Status Restore(const v1::RestoreRequest& request, const OnEvent<v1::JobEvent>& on_event) = 0;
  virtual absl::Status Checkpoint(const v1::CheckpointRequest& request,
                                  const OnEvent<v1::CheckpointEvent>& on_event) = 0;
  virtual absl::Status Fsck(const v1::FsckRequest& request, const OnEvent<v1::FsckEvent>& on_event) = 0;
  virtual absl::Status ExportImage(const v1::ExportImageRequest& request,
                                   const OnEvent<v1::TransferEvent>& on_event) = 0;
  virtual absl::Status ImportImage(const v1::ImportImageRequest& request,
                                   const OnEvent<v1::TransferEvent>& on_event) = 0;
  // `on_event` returns false to get no more: then the call ends, with Cancelled.
  virtual absl::Status SendImage(const v1::SendImageRequest& request,
                                 const std::function<bool(const v1::SendImageEvent&)>& on_event) = 0;
  // Beside any other call, also after Cancel; takes no longer than a few seconds. Unimplemented: the daemon
  // is an older one.
  virtual absl::StatusOr<v1::NoteCopyResponse> NoteCopy(const v1::NoteCopyRequest& request) = 0;
  // `on_progress` is called on a thread of the receiver's, which must not outlive the client.
  virtual std::unique_ptr<ImageReceiver> ReceiveImage(const v1::ReceiveImageBegin& begin,
                                                      OnEvent<v1::Progress> on_progress) = 0;
  virtual absl::Status StartFromTemplate(const v1::StartFromTemplateRequest& request,
                                         const OnEvent<v1::JobEvent>& on_event) = 0;
  virtual absl::Status HoldGpu(const v1::HoldGpuRequest& request,
                               const OnEvent<v1::LeaseGpuResponse>& on_event) = 0;
  virtual absl::Status SetFunction(const v1::SetFunctionRequest& request,
                                   const OnEvent<v1::DeployEvent>& on_event) = 0;
  virtual absl::Status DeployFunction(const v1::DeployFunctionRequest& request,
                                      const OnEvent<v1::DeployEvent>& on_event) = 0;
  virtual absl::Status FunctionLogs(const v1::FunctionLogsRequest& request,
                                    const OnEvent<v1::FunctionLogLine>& on_event) = 0;
  virtual absl::Status BuildDependencies(const v1::BuildDependenciesRequest& request,
                                         const OnEvent<v1::BuildDependenciesEvent>& on_event) = 0;
  virtual absl::Status CheckpointGroup(const v1::CheckpointGroupRequest& request,
                                       const OnEvent<v1::GroupEvent>& on_event) = 0;
  virtual absl::Status RestoreGroup(const v1::RestoreGroupRequest& request,
                                    const OnEvent<v1::GroupEvent>& on_event) = 0;

  // False: the service is in this process.
  virtual bool AtDaemon() const = 0;
  // Returns when there is a connection to the daemon, or after `limit`.
  virtual void AwaitConnection(absl::Duration limit) = 0;

  // Ends the call in work, and any later one, with Cancelled, and each StopJob, in work or later, once the
  // daemon has had a second to hear of it: it goes on with that. Of a Checkpoint, CheckpointGroup or
  // RestoreGroup the first time only asks for its end: it returns when the jobs are free, or gone again,
  // after a minute at the latest.
  virtual void Cancel() = 0;
};

// Does something listen on this Unix socket? Takes microseconds.
bool UnixSocketAnswers(const std::string& path);

}  // namespace rekindle::cli
