// The commands: each makes its call, prints what comes of it, and returns the exit status.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "cli/run_options.h"
#include "cli/timeline.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct StopJobs;

// job_commands.cc. `interrupts` sends signals to the job, or cancels what is not done yet. These return the
// job's own exit status when they waited for it.
// `host`: of the daemon; empty: in this process.
int RunJob(Client& client, absl::string_view host, const GlobalOptions& globals, const Output& output,
           Interrupts& interrupts, const v1::RunRequest& request, const RunOptions& options);
int RestoreJob(Client& client, const Output& output, Interrupts& interrupts,
               const v1::RestoreRequest& request, const TimelineOptions& timeline);
int AttachJob(Client& client, const Output& output, Interrupts& interrupts,
              const v1::AttachJobRequest& request);
// One after the other, also where one can't be: then the status is that of the first of these.
int StopEach(Client& client, const Output& output, const StopJobs& jobs);
int Checkpoint(Client& client, const Output& output, Interrupts& interrupts,
               const v1::CheckpointRequest& request);
int ListJobs(Client& client, const Output& output, const v1::ListJobsRequest& request);

int StartFromTemplate(Client& client, const Output& output, Interrupts& interrupts,
                      const v1::StartFromTemplateRequest& request, const TimelineOptions& timeline);

// wait_command.cc
int WaitForJobs(Client& client, const Output& output, const v1::WaitForJobsRequest& request);
// Until they have ended, also where the daemon is started anew meanwhile; a part of WaitForJobs.
absl::Status AwaitEnds(Client& client, const Output& output, v1::WaitForJobsRequest request,
                       const Client::OnEvent<v1::JobExit>& on_exit);

// template_commands.cc
int TemplateUp(Client& client, const Output& output, const v1::TemplateUpRequest& request);
int TemplateDown(Client& client, const Output& output, const v1::TemplateDownRequest& request);
int ListTemplates(Client& client, const Output& output, const v1::ListTemplatesRequest& request);

// image_commands.cc
int InspectImage(Client& client, const Output& output, const v1::InspectImageRequest& request);
int DiffImages(Client& client, const Output& output, const v1::DiffImagesRequest& request);
// `of_store`: options by which 'rekindle gc' finds the store, where it is another one, with a space behind
// them.
int RemoveImages(Client& client, const Output& output, const v1::RemoveImagesRequest& request,
                 const std::string& of_store = "");
int TagImage(Client& client, const Output& output, const v1::TagImageRequest& request);
int DropWorkingSet(Client& client, const Output& output, const v1::DropWorkingSetRequest& request);
int ExportImage(Client& client, const Output& output, Interrupts& interrupts,
                const v1::ExportImageRequest& request);
int ImportImage(Client& client, const Output& output, Interrupts& interrupts,
                const v1::ImportImageRequest& request);

// gpu_commands.cc
int ListGpus(Client& client, const Output& output, const v1::ListGpusRequest& request);
int ParkGpu(Client& client, const Output& output, const v1::ParkGpuRequest& request);
int ResumeGpu(Client& client, const Output& output, Interrupts& interrupts,
              const v1::ResumeGpuRequest& request);
int SwapGpu(Client& client, const Output& output, Interrupts& interrupts, const v1::SwapGpuRequest& request);
int LeaseGpu(Client& client, const Output& output, const v1::LeaseGpuRequest& request);
int ReleaseGpu(Client& client, const Output& output, const v1::ReleaseGpuRequest& request);
int HoldGpu(Client& client, const Output& output, Interrupts& interrupts, const v1::HoldGpuRequest& request);

// limit_commands.cc
int PruneImages(Client& client, const Output& output, const v1::PruneImagesRequest& request);
// What came of it, wherever the images are.
int ShowPruned(const Output& output, const absl::StatusOr<v1::PruneImagesResponse>& response, bool dry_run);
int GetQuota(Client& client, const Output& output, const v1::GetQuotaRequest& request);
int SetQuota(Client& client, const Output& output, const v1::SetQuotaRequest& request);
// Two lines: the store and its file system against their limits.
std::string StoreQuotaText(const v1::StoreQuota& quota);

// store_commands.cc
int CollectGarbage(Client& client, const Output& output, const v1::CollectGarbageRequest& request);
int Fsck(Client& client, const Output& output, Interrupts& interrupts, const v1::FsckRequest& request);
// What a check found, wherever the images are. `lost`: what the lost ones are; `also`: what else was checked;
// `what_is_left` to be done, or that all is whole.
void ShowChecked(const Output& output, const v1::FsckResult& result, bool read, absl::string_view lost,
                 absl::string_view also, absl::string_view what_is_left);
int GetStats(Client& client, const Output& output, const v1::GetStatsRequest& request);
int Doctor(Client& client, const Output& output, const v1::DoctorRequest& request);
int GetVersion(Client& client, const Output& output, const v1::GetVersionRequest& request);

// group_commands.cc
int CheckpointGroup(Client& client, const Output& output, Interrupts& interrupts,
                    const v1::CheckpointGroupRequest& request);
int RestoreGroup(Client& client, const Output& output, Interrupts& interrupts,
                 const v1::RestoreGroupRequest& request);
int ListGroups(Client& client, const Output& output, const v1::ListGroupsRequest& request);
int RemoveGroup(Client& client, const Output& output, const v1::RemoveGroupRequest& request);
int ResolveGroup(Client& client, const Output& output, const v1::ResolveGroupRequest& request);

}  // namespace rekindle::cli
