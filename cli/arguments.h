// The command line, turned into requests of the API.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cli/copy_command.h"
#include "cli/image_listing.h"
#include "cli/logs_command.h"
#include "cli/place_check.h"
#include "cli/place_pruning.h"
#include "cli/place_removal.h"
#include "cli/run_options.h"
#include "cli/sim_command.h"
#include "cli/timeline.h"
#include "cli/top_command.h"
#include "cli/transfer_commands.h"
#include "rekindle/v1/group.pb.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions {
  std::optional<std::string> store, host;  // as given on the command line
  std::string tls_ca, tls_certificate, tls_key;
  bool verbose = false;
  bool json = false;
  bool no_daemon = false;
};

// An invocation whose payload is still to be read: JSON, @FILE, or - for standard input.
struct FunctionInvocation {
  v1::InvokeFunctionRequest request;
  std::string payload;
  std::string output;  // a file for what it returns; empty: standard output
};
struct FunctionRemoval {
  std::vector<std::string> names;
};
struct StopJobs {
  std::vector<v1::StopJobRequest> requests;
};
struct DependenciesRemoval {
  std::vector<std::string> images;
};

// GC, stats and so on: the request says it all. Run has the caller's environment and working directory in it.
using Command = std::variant<
    std::monostate, v1::GetVersionRequest, v1::DoctorRequest, v1::RunRequest, v1::CheckpointRequest,
    v1::RestoreRequest, v1::ListJobsRequest, ImageListing, v1::InspectImageRequest, v1::DiffImagesRequest,
    v1::RemoveImagesRequest, v1::TagImageRequest, v1::DropWorkingSetRequest, v1::PruneImagesRequest,
    v1::GetQuotaRequest, v1::SetQuotaRequest, v1::CollectGarbageRequest, v1::FsckRequest, v1::GetStatsRequest,
    v1::ExportImageRequest, v1::ImportImageRequest, v1::TemplateUpRequest, v1::TemplateDownRequest,
    v1::ListTemplatesRequest, v1::StartFromTemplateRequest, v1::ListGpusRequest, v1::ParkGpuRequest,
    v1::ResumeGpuRequest, v1::SwapGpuRequest, v1::LeaseGpuRequest, v1::ReleaseGpuRequest, v1::HoldGpuRequest,
    v1::DeployFunctionRequest, v1::SetFunctionRequest, FunctionInvocation, v1::ListFunctionsRequest,
    v1::FunctionLogsRequest, FunctionRemoval, v1::FunctionStatsRequest, v1::BuildDependenciesRequest,
    v1::ListDependenciesRequest, DependenciesRemoval, v1::CheckpointGroupRequest, v1::RestoreGroupRequest,
    v1::ListGroupsRequest, v1::RemoveGroupRequest, v1::ResolveGroupRequest, SimRequest, TopRequest, StopJobs,
    v1::AttachJobRequest, v1::WaitForJobsRequest, LogsOfJob, ExportToFile, ImportFromFile, CopyImage,
    PruneElsewhere, RemoveElsewhere, FsckElsewhere>;

struct Invocation {
  GlobalOptions globals;
  Command command;
  TimelineOptions timeline;  // of what restores
  RunOptions run;
  bool of_functions = false;  // `fn` and `deps`, which a daemon alone does
};

// What is to be done: a command, or a text to print (help) with a status that says whether that was asked for
// (OK) or is due to bad usage (InvalidArgument).
struct ParsedArguments {
  absl::Status status;
  std::string help;
  Invocation invocation;
};

// `arguments` without the program's name. `working_directory` and `environment` are the caller's.
ParsedArguments ParseArguments(const std::vector<std::string>& arguments,
                               const std::string& working_directory,
                               const std::vector<std::string>& environment);

}  // namespace rekindle::cli
