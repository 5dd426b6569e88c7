#include "cli/gpu_arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/command_group.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"

namespace rekindle::cli {
namespace {

constexpr char kJobType[] = "PID|NAME";

}  // namespace

absl::Status ParseGpuMap(const std::string& text, google::protobuf::RepeatedPtrField<v1::GpuPair>* pairs) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    std::pair<std::string, std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (sides.first.empty() || sides.second.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is no GPU map: write OLD=NEW,…, each a UUID from 'nvidia-smi -L'"));
    }
    v1::GpuPair* pair = pairs->Add();
    pair->set_from(sides.first);
    pair->set_to(sides.second);
  }
  return absl::OkStatus();
}

void GpuArguments::AddTo(CLI::App& app) {
  gpu_ = AddCommandGroup(
      app, "gpu", "Show GPUs and the jobs on them; move jobs off and onto them",
      "  rekindle gpu ps\n"
      "  rekindle gpu park llama\n"
      "  rekindle gpu swap llama mistral\n"
      "A parked job stays where it is, its device memory in host memory; its CUDA calls wait.\n");
  AddCommand(*gpu_, "ps", "List GPUs, and the jobs that use them or are parked",
             "  rekindle gpu ps --json\n");
  CLI::App* park = AddCommand(*gpu_, "park", "Move a job's device memory to host memory and free its GPU",
                              "  rekindle gpu park llama\n  rekindle gpu park 4711 --lock-timeout 60\n");
  park->add_option("job", job_, "PID of the job's root process, or a job's name")
      ->type_name(kJobType)
      ->required();
  CLI::App* resume = AddCommand(*gpu_, "resume", "Put a parked job's device memory back",
                                "  rekindle gpu resume llama\n"
                                "  rekindle gpu resume llama --gpu-map GPU-8a6c…=GPU-1b2d…\n");
  resume->add_option("job", job_, "PID of the job's root process, or a job's name")
      ->type_name(kJobType)
      ->required();
  resume->add_option("--gpu-map", map_, "Onto other GPUs of the same model; UUIDs from 'nvidia-smi -L'")
      ->type_name("OLD=NEW,...");
  CLI::App* swap =
      AddCommand(*gpu_, "swap", "Park one job and resume another", "  rekindle gpu swap llama mistral\n");
  swap->add_option("out", job_, "The job to park")->type_name(kJobType)->required();
  swap->add_option("in", other_job_, "The job to resume")->type_name(kJobType)->required();
  CLI::App* lease = AddCommand(
      *gpu_, "lease", "Let the daemon put a job on its GPU and keep it there",
      "  rekindle gpu lease llama --timeout 5 && { curl …; rekindle gpu release llama; }\n"
      "Jobs that nobody has leased are parked if device memory is short, the least recently used first.\n");
  lease->add_option("job", job_, "PID of the job's root process, or a job's name")
      ->type_name(kJobType)
      ->required();
  lease->add_option("--timeout", timeout_, "How long to wait for a turn [60]")
      ->type_name("SECONDS")
      ->check(AboveZero());
  lease->add_flag("--pin", pin_, "Do not park it for others after its release either");
  CLI::Option* hold =
      lease->add_flag("--hold", hold_, "Keep the lease until this command ends, and no longer");
  CLI::Option* with_id =
      lease->add_flag("--with-id", with_id_, "Give the lease an ID, by which alone it is released")
          ->excludes(hold);
  lease
      ->add_option("--lease-id", lease_id_,
                   "The same with this ID: if the job is leased under it already, no second time")
      ->type_name("ID")
      ->excludes(hold)
      ->excludes(with_id);
  CLI::App* release = AddCommand(*gpu_, "release", "Give a lease back: the job may be parked for others",
                                 "  rekindle gpu release llama\n  rekindle gpu release llama --unpin\n");
  release->add_option("job", job_, "PID of the job's root process, or a job's name")
      ->type_name(kJobType)
      ->required();
  CLI::Option* unpin = release->add_flag("--unpin", unpin_, "End the job's pin instead, and no lease");
  release->add_option("--lease-id", lease_id_, "End the lease that has this ID, and no other")
      ->type_name("ID")
      ->excludes(unpin);
  for (CLI::App* command : {park, swap}) {
    command
        ->add_option("--lock-timeout", lock_timeout_,
                     "How long work under way on the GPU may take to end [10]")
        ->type_name("SECONDS")
        ->check(AboveZero());
  }
}

absl::StatusOr<Command> GpuArguments::Finish() const {
  const std::string name = gpu_->get_subcommands().front()->get_name();
  if (name == "ps") return v1::ListGpusRequest();
  RK_ASSIGN_OR_RETURN(JobName job, ParseJobName(job_));
  if (name == "park") {
    v1::ParkGpuRequest request;
    request.set_pid(job.pid);
    request.set_job(job.name);
    request.set_lock_timeout_seconds(lock_timeout_);
    return request;
  }
  if (name == "resume") {
    v1::ResumeGpuRequest request;
    request.set_pid(job.pid);
    request.set_job(job.name);
    if (!map_.empty()) RK_RETURN_IF_ERROR(ParseGpuMap(map_, request.mutable_gpu_map()));
    return request;
  }
  if (name == "lease") {
    v1::LeaseGpuRequest request;
    request.set_pid(job.pid);
    request.set_job(job.name);
    request.set_timeout_seconds(timeout_);
    request.set_pin(pin_);
    request.set_with_id(with_id_);
    request.set_lease_id(lease_id_);
    if (!hold_) return request;
    v1::HoldGpuRequest hold;
    *hold.mutable_lease() = request;
    return hold;
  }
  if (name == "release") {
    v1::ReleaseGpuRequest request;
    request.set_pid(job.pid);
    request.set_job(job.name);
    request.set_unpin(unpin_);
    request.set_lease_id(lease_id_);
    return request;
  }
  RK_ASSIGN_OR_RETURN(JobName in, ParseJobName(other_job_));
  v1::SwapGpuRequest request;
  request.set_out_pid(job.pid);
  request.set_out_job(job.name);
  request.set_in_pid(in.pid);
  request.set_in_job(in.name);
  request.set_lock_timeout_seconds(lock_timeout_);
  return request;
}

}  // namespace rekindle::cli
