// The remote procedures of rekindle.v1.Rekindle, free of gRPC: each checks what the caller may do, does it,
// and fills the response. Errors are for people: they go to the client as they are. All are thread-safe.
#pragma once

#include "absl/status/status.h"
#include "daemon/call.h"
#include "daemon/function_rpcs.h"
#include "daemon/node.h"
#include "daemon/rpc_support.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// node_rpcs.cc
absl::Status GetVersion(Node& node, const Call& call, const v1::GetVersionRequest& request,
                        v1::GetVersionResponse* response);
absl::Status Doctor(Node& node, const Call& call, const v1::DoctorRequest& request,
                    v1::DoctorResponse* response);

// job_rpcs.cc
absl::Status Run(Node& node, const Call& call, const v1::RunRequest& request,
                 const EventSink<v1::JobEvent>& send);
absl::Status SignalJob(Node& node, const Call& call, const v1::SignalJobRequest& request);
absl::Status ListJobs(Node& node, const Call& call, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response);
// Without what is known of copies of their images.
absl::Status ListJobsAlone(Node& node, const Call& call, const v1::ListJobsRequest& request,
                           v1::ListJobsResponse* response);

// supervision_rpcs.cc
// Run, of a job that is to be supervised.
absl::Status RunSupervised(Node& node, const Call& call, const v1::RunRequest& request,
                           const EventSink<v1::JobEvent>& send);
absl::Status StopJob(Node& node, const Call& call, const v1::StopJobRequest& request,
                     v1::StopJobResponse* response);
absl::Status AttachJob(Node& node, const Call& call, const v1::AttachJobRequest& request,
                       const EventSink<v1::JobEvent>& send);

// wait_rpc.cc
absl::Status WaitForJobs(Node& node, const Call& call, const v1::WaitForJobsRequest& request,
                         const EventSink<v1::JobExit>& send);

// checkpoint_rpc.cc
absl::Status Checkpoint(Node& node, const Call& call, const v1::CheckpointRequest& request,
                        const EventSink<v1::CheckpointEvent>& send);

// restore_rpc.cc
absl::Status Restore(Node& node, const Call& call, const v1::RestoreRequest& request,
                     const EventSink<v1::JobEvent>& send);

// What Restore does until the job runs, for one that is no clone.
absl::StatusOr<RegisteredJob> RestoreJob(Node& node, const Call& call, const v1::RestoreRequest& request,
                                         const EventSink<v1::JobEvent>& send);

// clone_rpc.cc: a copy without the hook has none of the variables that it was to have.
void WarnOfEnvironment(const v1::CloneOptions& clone, bool has_hook, v1::JobStarted* started);
// clone_rpc.cc: what Restore does when clones are asked for.
absl::Status RestoreClones(Node& node, const Call& call, const v1::RestoreRequest& request,
                           store::Store& store, const store::ImageInfo& info, const criu::Installation& criu,
                           const EventSink<v1::JobEvent>& send);

// template_rpcs.cc
absl::Status TemplateUp(Node& node, const Call& call, const v1::TemplateUpRequest& request,
                        v1::Template* response);
absl::Status TemplateDown(Node& node, const Call& call, const v1::TemplateDownRequest& request,
                          v1::TemplateDownResponse* response);
absl::Status ListTemplates(Node& node, const Call& call, const v1::ListTemplatesRequest& request,
                           v1::ListTemplatesResponse* response);
absl::Status StartFromTemplate(Node& node, const Call& call, const v1::StartFromTemplateRequest& request,
                               const EventSink<v1::JobEvent>& send);

// gpu_rpcs.cc
absl::Status ListGpus(Node& node, const Call& call, const v1::ListGpusRequest& request,
                      v1::ListGpusResponse* response);
absl::Status ParkGpu(Node& node, const Call& call, const v1::ParkGpuRequest& request,
                     v1::GpuMoveResponse* response);
absl::Status ResumeGpu(Node& node, const Call& call, const v1::ResumeGpuRequest& request,
                       v1::GpuMoveResponse* response);
absl::Status SwapGpu(Node& node, const Call& call, const v1::SwapGpuRequest& request,
                     v1::GpuMoveResponse* response);
absl::Status LeaseGpu(Node& node, const Call& call, const v1::LeaseGpuRequest& request,
                      v1::LeaseGpuResponse* response);
absl::Status ReleaseGpu(Node& node, const Call& call, const v1::ReleaseGpuRequest& request,
                        v1::ReleaseGpuResponse* response);
absl::Status HoldGpu(Node& node, const Call& call, const v1::HoldGpuRequest& request,
                     const EventSink<v1::LeaseGpuResponse>& send);

// image_rpcs.cc
absl::Status ListImages(Node& node, const Call& call, const v1::ListImagesRequest& request,
                        v1::ListImagesResponse* response);
absl::Status InspectImage(Node& node, const Call& call, const v1::InspectImageRequest& request,
                          v1::InspectImageResponse* response);
absl::Status DiffImages(Node& node, const Call& call, const v1::DiffImagesRequest& request,
                        v1::DiffImagesResponse* response);
absl::Status RemoveImages(Node& node, const Call& call, const v1::RemoveImagesRequest& request,
                          v1::RemoveImagesResponse* response);
absl::Status TagImage(Node& node, const Call& call, const v1::TagImageRequest& request,
                      v1::TagImageResponse* response);

// working_set.cc
absl::Status DropWorkingSet(Node& node, const Call& call, const v1::DropWorkingSetRequest& request,
                            v1::DropWorkingSetResponse* response);

// copy_notes.cc
absl::Status NoteCopy(Node& node, const Call& call, const v1::NoteCopyRequest& request,
                      v1::NoteCopyResponse* response);

// limits_rpc.cc
absl::Status PruneImages(Node& node, const Call& call, const v1::PruneImagesRequest& request,
                         v1::PruneImagesResponse* response);
absl::Status GetQuota(Node& node, const Call& call, const v1::GetQuotaRequest& request,
                      v1::GetQuotaResponse* response);
absl::Status SetQuota(Node& node, const Call& call, const v1::SetQuotaRequest& request,
                      v1::GetQuotaResponse* response);

// store_rpcs.cc
absl::Status CollectGarbage(Node& node, const Call& call, const v1::CollectGarbageRequest& request,
                            v1::CollectGarbageResponse* response);
absl::Status Fsck(Node& node, const Call& call, const v1::FsckRequest& request,
                  const EventSink<v1::FsckEvent>& send);
absl::Status GetStats(Node& node, const Call& call, const v1::GetStatsRequest& request,
                      v1::GetStatsResponse* response);

// image_transfer_rpcs.cc
absl::Status ExportImage(Node& node, const Call& call, const v1::ExportImageRequest& request,
                         const EventSink<v1::TransferEvent>& send);
absl::Status ImportImage(Node& node, const Call& call, const v1::ImportImageRequest& request,
                         const EventSink<v1::TransferEvent>& send);
absl::Status SendImage(Node& node, const Call& call, const v1::SendImageRequest& request,
                       const EventSink<v1::SendImageEvent>& send);
// `read` waits for the next message; false: none comes any more.
absl::Status ReceiveImage(Node& node, const Call& call,
                          const std::function<bool(v1::ReceiveImageRequest*)>& read,
                          const EventSink<v1::ReceiveImageEvent>& send);

}  // namespace rekindle::daemon
