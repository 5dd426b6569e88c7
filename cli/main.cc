// The command `rekindle`.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadlock_checks.h"
#include "base/descriptor_limit.h"
#include "base/ends_for_limits.h"
#include "base/log.h"
#include "base/program_start.h"
#include "cli/arguments.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/endpoint.h"
#include "cli/function_commands.h"
#include "cli/image_listing.h"
#include "cli/interrupts.h"
#include "cli/job_session.h"
#include "cli/output.h"
#include "cli/terminal_stops.h"
#include "cli/top_command.h"
#include "daemon/environment_check.h"

extern char** environ;

namespace rekindle::cli {
namespace {

constexpr uint64_t kFewestDescriptors = 32;

std::string FromEnvironment(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

// Nothing: it has been removed, or can't be reached from our root.
std::optional<std::string> WorkingDirectory() {
  std::unique_ptr<char, decltype(&std::free)> path(::getcwd(nullptr, 0), &std::free);
  if (path == nullptr || path.get()[0] != '/') return std::nullopt;
  return path.get();
}

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// Do signals mean "cancel" or "tell the job" to this command, instead of ending it on the spot?
bool HandlesSignals(const Command& command) {
  return std::holds_alternative<v1::RunRequest>(command) ||
         std::holds_alternative<v1::AttachJobRequest>(command) ||
         std::holds_alternative<v1::CheckpointRequest>(command) ||
         std::holds_alternative<v1::RestoreRequest>(command) ||
         std::holds_alternative<v1::StartFromTemplateRequest>(command) ||
         std::holds_alternative<v1::FsckRequest>(command) ||
         std::holds_alternative<v1::ExportImageRequest>(command) ||
         std::holds_alternative<v1::ImportImageRequest>(command) ||
         std::holds_alternative<ExportToFile>(command) || std::holds_alternative<ImportFromFile>(command) ||
         std::holds_alternative<CopyImage>(command) || std::holds_alternative<v1::HoldGpuRequest>(command) ||
         std::holds_alternative<v1::ResumeGpuRequest>(command) ||
         std::holds_alternative<v1::SwapGpuRequest>(command) || std::holds_alternative<TopRequest>(command) ||
         std::holds_alternative<v1::DeployFunctionRequest>(command) ||
         std::holds_alternative<v1::SetFunctionRequest>(command) ||
         std::holds_alternative<v1::CheckpointGroupRequest>(command) ||
         std::holds_alternative<v1::RestoreGroupRequest>(command) ||
         std::holds_alternative<v1::BuildDependenciesRequest>(command);
}

// Until that ends.
bool FollowsJob(const Command& command) {
  const auto* run = std::get_if<v1::RunRequest>(&command);
  const auto* restore = std::get_if<v1::RestoreRequest>(&command);
  const auto* start = std::get_if<v1::StartFromTemplateRequest>(&command);
  return std::holds_alternative<v1::AttachJobRequest>(command) || (run != nullptr && !run->detach()) ||
         (restore != nullptr && !restore->detach() && !restore->rollback().dry_run()) ||
         (start != nullptr && !start->detach());
}

// May it take an image, where this process hosts the service?
bool MayTakeImages(const Command& command) {
  return std::holds_alternative<v1::CheckpointRequest>(command) ||
         std::holds_alternative<v1::RunRequest>(command) || std::holds_alternative<StopJobs>(command);
}

// For a short command: each thread's own heap grows by single pages, each of which is a call of the kernel.
// To be called before there are threads.
void UseOneHeap() {
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_TOP_PAD, 1 << 20);
}

int Execute(const Invocation& invocation, const Output& output) {
  if (const auto* sim = std::get_if<SimRequest>(&invocation.command)) return RunSimulation(output, *sim);
  // It needs neither a store nor a daemon here: this may be a node that has nothing yet.
  if (const auto* listing = std::get_if<ImageListing>(&invocation.command);
      listing != nullptr && !listing->from.empty()) {
    return ListImagesElsewhere(invocation.globals, output, *listing);
  }
  if (const auto* pruning = std::get_if<PruneElsewhere>(&invocation.command))
    return PruneImagesElsewhere(invocation.globals, output, *pruning);
  if (const auto* removal = std::get_if<RemoveElsewhere>(&invocation.command))
    return RemoveImagesElsewhere(invocation.globals, output, *removal);
  if (const auto* check = std::get_if<FsckElsewhere>(&invocation.command))
    return CheckElsewhere(invocation.globals, output, *check);
  Surroundings surroundings;
  surroundings.store = FromEnvironment("REKINDLE_STORE");
  surroundings.host = FromEnvironment("REKINDLE_HOST");
  surroundings.page_cache = FromEnvironment("REKINDLE_PAGE_CACHE");
  surroundings.root = ::geteuid() == 0;
  absl::StatusOr<Endpoint> endpoint = ChooseEndpoint(invocation.globals, surroundings);
  if (!endpoint.ok()) return output.Fail(endpoint.status());
  if (!endpoint->warning.empty()) output.Warning(endpoint->warning);
  // For the service, if this process is to host it. Else a daemon gives the limit to what we have it start.
  if (endpoint->host.empty()) RaiseDescriptorLimit();
  // Before any other thread is made, so that all leave the signals to these.
  std::unique_ptr<TerminalStops> terminal_stops;
  if (endpoint->host.empty() && MayTakeImages(invocation.command))
    terminal_stops = std::make_unique<TerminalStops>();
  std::unique_ptr<Interrupts> interrupts;
  if (HandlesSignals(invocation.command)) {
    interrupts = std::make_unique<Interrupts>(
        invocation.run.stop_on, FollowsJob(invocation.command) ? SignalsForJobs() : std::vector<int>());
  } else {
    UseOneHeap();
  }
  absl::StatusOr<std::unique_ptr<Client>> opened = Client::Open(*endpoint);
  if (!opened.ok()) return output.Fail(opened.status());
  Client& client = **opened;
  return std::visit(
      Overloaded{
          [&](std::monostate) -> int { return kBadUsage; },
          [&](const SimRequest&) -> int { return kBadUsage; },  // done above: it needs no service
          [&](const PruneElsewhere&) -> int { return kBadUsage; },
          [&](const RemoveElsewhere&) -> int { return kBadUsage; },
          [&](const FsckElsewhere&) -> int { return kBadUsage; },
          [&](const v1::GetVersionRequest& request) { return GetVersion(client, output, request); },
          [&](const v1::DoctorRequest& request) { return Doctor(client, output, request); },
          [&](const v1::RunRequest& request) {
            return RunJob(client, endpoint->host, invocation.globals, output, *interrupts, request,
                          invocation.run);
          },
          [&](const v1::CheckpointRequest& request) {
            return Checkpoint(client, output, *interrupts, request);
          },
          [&](const v1::RestoreRequest& request) {
            return RestoreJob(client, output, *interrupts, request, invocation.timeline);
          },
          [&](const StopJobs& jobs) { return StopEach(client, output, jobs); },
          [&](const v1::AttachJobRequest& request) {
            return AttachJob(client, output, *interrupts, request);
          },
          [&](const v1::WaitForJobsRequest& request) { return WaitForJobs(client, output, request); },
          [&](const LogsOfJob& what) { return ShowLogs(client, endpoint->host, output, what); },
          [&](const v1::ListJobsRequest& request) { return ListJobs(client, output, request); },
          [&](const TopRequest& request) { return ShowTop(client, output, *interrupts, request); },
          [&](const ImageListing& what) { return ListImages(client, output, what); },
          [&](const v1::InspectImageRequest& request) { return InspectImage(client, output, request); },
          [&](const v1::DiffImagesRequest& request) { return DiffImages(client, output, request); },
          [&](const v1::RemoveImagesRequest& request) { return RemoveImages(client, output, request); },
          [&](const v1::TagImageRequest& request) { return TagImage(client, output, request); },
          [&](const v1::DropWorkingSetRequest& request) { return DropWorkingSet(client, output, request); },
          [&](const v1::PruneImagesRequest& request) { return PruneImages(client, output, request); },
          [&](const v1::GetQuotaRequest& request) { return GetQuota(client, output, request); },
          [&](const v1::SetQuotaRequest& request) { return SetQuota(client, output, request); },
          [&](const v1::CollectGarbageRequest& request) { return CollectGarbage(client, output, request); },
          [&](const v1::FsckRequest& request) { return Fsck(client, output, *interrupts, request); },
          [&](const v1::GetStatsRequest& request) { return GetStats(client, output, request); },
          [&](const v1::ExportImageRequest& request) {
            return ExportImage(client, output, *interrupts, request);
          },
          [&](const v1::ImportImageRequest& request) {
            return ImportImage(client, output, *interrupts, request);
          },
          [&](const ExportToFile& what) { return ExportImageToFile(client, output, *interrupts, what); },
          [&](const ImportFromFile& what) { return ImportImageFromFile(client, output, *interrupts, what); },
          [&](const CopyImage& what) {
            return CopyImages(client, invocation.globals, output, *interrupts, what);
          },
          [&](const v1::TemplateUpRequest& request) { return TemplateUp(client, output, request); },
          [&](const v1::TemplateDownRequest& request) { return TemplateDown(client, output, request); },
          [&](const v1::ListTemplatesRequest& request) { return ListTemplates(client, output, request); },
          [&](const v1::StartFromTemplateRequest& request) {
            return StartFromTemplate(client, output, *interrupts, request, invocation.timeline);
          },
          [&](const v1::CheckpointGroupRequest& request) {
            return CheckpointGroup(client, output, *interrupts, request);
          },
          [&](const v1::RestoreGroupRequest& request) {
            return RestoreGroup(client, output, *interrupts, request);
          },
          [&](const v1::ListGroupsRequest& request) { return ListGroups(client, output, request); },
          [&](const v1::RemoveGroupRequest& request) { return RemoveGroup(client, output, request); },
          [&](const v1::ResolveGroupRequest& request) { return ResolveGroup(client, output, request); },
          [&](const v1::ListGpusRequest& request) { return ListGpus(client, output, request); },
          [&](const v1::ParkGpuRequest& request) { return ParkGpu(client, output, request); },
          [&](const v1::ResumeGpuRequest& request) {
            return ResumeGpu(client, output, *interrupts, request);
          },
          [&](const v1::SwapGpuRequest& request) { return SwapGpu(client, output, *interrupts, request); },
          [&](const v1::LeaseGpuRequest& request) { return LeaseGpu(client, output, request); },
          [&](const v1::ReleaseGpuRequest& request) { return ReleaseGpu(client, output, request); },
          [&](const v1::HoldGpuRequest& request) { return HoldGpu(client, output, *interrupts, request); },
          [&](const v1::DeployFunctionRequest& request) {
            return DeployFunction(client, output, *interrupts, request);
          },
          [&](const v1::SetFunctionRequest& request) {
            return SetFunction(client, output, *interrupts, request);
          },
          [&](const FunctionInvocation& what) { return InvokeFunction(client, output, what); },
          [&](const v1::ListFunctionsRequest& request) { return ListFunctions(client, output, request); },
          [&](const v1::FunctionLogsRequest& request) { return ShowFunctionLogs(client, output, request); },
          [&](const FunctionRemoval& removal) { return RemoveFunctions(client, output, removal); },
          [&](const v1::FunctionStatsRequest& request) { return ShowFunctionStats(client, output, request); },
          [&](const v1::BuildDependenciesRequest& request) {
            return BuildDependencies(client, output, *interrupts, request);
          },
          [&](const v1::ListDependenciesRequest& request) {
            return ListDependencies(client, output, request);
          },
          [&](const DependenciesRemoval& removal) { return RemoveDependencies(client, output, removal); },
      },
      invocation.command);
}

int Main(int argc, char** argv) {
  std::vector<std::string> environment;
  for (char** variable = environ; variable && *variable; ++variable) environment.push_back(*variable);
  const std::optional<std::string> folder = WorkingDirectory();
  // What is named relative to a folder that is gone is found nowhere, and not in another folder.
  const std::string stand_in = absl::StrCat("/proc/", ::getpid(), "/cwd");
  ParsedArguments parsed = ParseArguments({argv + 1, argv + argc}, folder.value_or(stand_in), environment);
  const GlobalOptions& globals = parsed.invocation.globals;
  Output output(globals.json, globals.verbose);
  if (!folder) output.SetGoneFolder(stand_in);
  if (globals.verbose) SetLogLevel(LogLevel::kDebug);
  if (!parsed.status.ok()) return output.Fail(parsed.status);
  if (parsed.help.empty()) {
    if (const absl::Status enough = CheckDescriptorLimit(kFewestDescriptors, "rekindle"); !enough.ok())
      return output.Fail(enough);
  }
  if (!parsed.help.empty()) {
    PrintResult(parsed.help);
    return kDone;
  }
  if (!folder && std::holds_alternative<v1::RunRequest>(parsed.invocation.command)) {
    return output.Fail(absl::FailedPreconditionError(
        "the folder that you are in has been removed, or made anew, since you went there, and the command "
        "would run in another one: cd to one that is there (`cd \"$PWD\"` goes to one that was made anew)"));
  }
  if (const std::string trouble = daemon::TroubleInEnvironment(); !trouble.empty()) output.Warning(trouble);
  return Execute(parsed.invocation, output);
}

}  // namespace
}  // namespace rekindle::cli

int main(int argc, char** argv) {
  rekindle::BeginProgram();
  rekindle::TellOfLimitsAtTheEnd("rekindle");
  rekindle::LeaveOutDeadlockChecks();
  int code = rekindle::cli::Main(argc, argv);
  if (const absl::Status written = rekindle::cli::ResultsWritten();
      !written.ok() && code == rekindle::cli::kDone) {
    std::fputs(rekindle::cli::Output::ErrorText(written).c_str(), stderr);
    code = rekindle::cli::kFailed;
  }
  std::fflush(stderr);
  // What was to be closed in order is closed. gRPC's own orderly end would take longer than most commands.
  ::_exit(code);
}
