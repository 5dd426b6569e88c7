// The command `rekindle`.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
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

// What a command is done with.
struct Means {
  Client& client;
  const Endpoint& endpoint;
  const Invocation& invocation;
  const Output& output;
};

// One that ends on the spot at a signal.
template <typename Request>
struct Plain {
  int operator()(const Means& means, const Request& request) const {
    return perform(means.client, means.output, request);
  }
  int (*perform)(Client&, const Output&, const Request&);
};
template <typename Request>
Plain(int (*)(Client&, const Output&, const Request&)) -> Plain<Request>;

// One to which signals mean "cancel" or "tell the job".
template <typename Request>
struct Interruptible {
  int operator()(const Means& means, Interrupts& interrupts, const Request& request) const {
    return perform(means.client, means.output, interrupts, request);
  }
  int (*perform)(Client&, const Output&, Interrupts&, const Request&);
};
template <typename Request>
Interruptible(int (*)(Client&, const Output&, Interrupts&, const Request&)) -> Interruptible<Request>;

// How each command is done, and with that whether it takes interrupts.
constexpr Overloaded kCommands{
    Plain{GetVersion},
    Plain{Doctor},
    [](const Means& means, Interrupts& interrupts, const v1::RunRequest& request) {
      return RunJob(means.client, means.endpoint.host, means.invocation.globals, means.output, interrupts,
                    request, means.invocation.run);
    },
    Interruptible{Checkpoint},
    [](const Means& means, Interrupts& interrupts, const v1::RestoreRequest& request) {
      return RestoreJob(means.client, means.output, interrupts, request, means.invocation.timeline);
    },
    Plain{StopEach},
    Interruptible{AttachJob},
    Plain{WaitForJobs},
    [](const Means& means, const LogsOfJob& what) {
      return ShowLogs(means.client, means.endpoint.host, means.output, what);
    },
    Plain{ListJobs},
    Interruptible{ShowTop},
    Plain{ListImages},
    Plain{InspectImage},
    Plain{DiffImages},
    [](const Means& means, const v1::RemoveImagesRequest& request) {
      return RemoveImages(means.client, means.output, request);
    },
    Plain{TagImage},
    Plain{DropWorkingSet},
    Plain{PruneImages},
    Plain{GetQuota},
    Plain{SetQuota},
    Plain{CollectGarbage},
    Interruptible{Fsck},
    Plain{GetStats},
    Interruptible{ExportImage},
    Interruptible{ImportImage},
    Interruptible{ExportImageToFile},
    Interruptible{ImportImageFromFile},
    [](const Means& means, Interrupts& interrupts, const CopyImage& what) {
      return CopyImages(means.client, means.invocation.globals, means.output, interrupts, what);
    },
    Plain{TemplateUp},
    Plain{TemplateDown},
    Plain{ListTemplates},
    [](const Means& means, Interrupts& interrupts, const v1::StartFromTemplateRequest& request) {
      return StartFromTemplate(means.client, means.output, interrupts, request, means.invocation.timeline);
    },
    Interruptible{CheckpointGroup},
    Interruptible{RestoreGroup},
    Plain{ListGroups},
    Plain{RemoveGroup},
    Plain{ResolveGroup},
    Plain{ListGpus},
    Plain{ParkGpu},
    Interruptible{ResumeGpu},
    Interruptible{SwapGpu},
    Plain{LeaseGpu},
    Plain{ReleaseGpu},
    Interruptible{HoldGpu},
    Interruptible{DeployFunction},
    Interruptible{SetFunction},
    Plain{InvokeFunction},
    Plain{ListFunctions},
    Plain{ShowFunctionLogs},
    Plain{RemoveFunctions},
    Plain{ShowFunctionStats},
    Interruptible{BuildDependencies},
    Plain{ListDependencies},
    Plain{RemoveDependencies},
};

// Those that need neither a store nor a daemon here: this may be a node that has nothing yet. Nothing: it
// needs one all the same.
constexpr Overloaded kCommandsElsewhere{
    [](const GlobalOptions&, const Output& output, const SimRequest& sim) -> std::optional<int> {
      return RunSimulation(output, sim);
    },
    [](const GlobalOptions& globals, const Output& output, const ImageListing& what) -> std::optional<int> {
      if (what.from.empty()) return std::nullopt;
      return ListImagesElsewhere(globals, output, what);
    },
    [](const GlobalOptions& globals, const Output& output, const PruneElsewhere& what) -> std::optional<int> {
      return PruneImagesElsewhere(globals, output, what);
    },
    [](const GlobalOptions& globals, const Output& output, const RemoveElsewhere& what)
        -> std::optional<int> { return RemoveImagesElsewhere(globals, output, what); },
    [](const GlobalOptions& globals, const Output& output, const FsckElsewhere& what) -> std::optional<int> {
      return CheckElsewhere(globals, output, what);
    },
};

template <typename C>
constexpr bool kTakesInterrupts =
    std::is_invocable_v<decltype(kCommands), const Means&, Interrupts&, const C&>;
template <typename C>
constexpr bool kIsPlain = std::is_invocable_v<decltype(kCommands), const Means&, const C&>;
template <typename C>
constexpr bool kMayBeElsewhere =
    std::is_invocable_v<decltype(kCommandsElsewhere), const GlobalOptions&, const Output&, const C&>;

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

std::optional<int> PerformElsewhere(const Invocation& invocation, const Output& output) {
  return std::visit(
      [&](const auto& command) -> std::optional<int> {
        if constexpr (kMayBeElsewhere<std::decay_t<decltype(command)>>) {
          return kCommandsElsewhere(invocation.globals, output, command);
        } else {
          return std::nullopt;
        }
      },
      invocation.command);
}

// `interrupts`: of a command that takes them.
int Perform(const Means& means, Interrupts* interrupts) {
  return std::visit(
      [&](const auto& command) -> int {
        using C = std::decay_t<decltype(command)>;
        static_assert(!(kTakesInterrupts<C> && kIsPlain<C>));
        if constexpr (kTakesInterrupts<C>) {
          return kCommands(means, *interrupts, command);
        } else if constexpr (kIsPlain<C>) {
          return kCommands(means, command);
        } else {
          static_assert(kMayBeElsewhere<C> || std::is_same_v<C, std::monostate>);
          return kBadUsage;
        }
      },
      means.invocation.command);
}

Surroundings OurSurroundings() {
  Surroundings surroundings;
  surroundings.store = FromEnvironment("REKINDLE_STORE");
  surroundings.host = FromEnvironment("REKINDLE_HOST");
  surroundings.page_cache = FromEnvironment("REKINDLE_PAGE_CACHE");
  surroundings.root = ::geteuid() == 0;
  return surroundings;
}

int Execute(const Invocation& invocation, const Output& output) {
  if (const std::optional<int> code = PerformElsewhere(invocation, output)) return *code;
  absl::StatusOr<Endpoint> endpoint = ChooseEndpoint(invocation.globals, OurSurroundings());
  if (!endpoint.ok()) return output.Fail(endpoint.status());
  endpoint->of_functions = invocation.of_functions;
  if (endpoint->of_functions) {
    if (absl::Status has = CheckHasFunctions(*endpoint); !has.ok()) return output.Fail(has);
  }
  if (!endpoint->warning.empty()) output.Warning(endpoint->warning);
  // For the service, if this process is to host it. Else a daemon gives the limit to what we have it start.
  if (endpoint->host.empty()) RaiseDescriptorLimit();
  // Before any other thread is made, so that all leave the signals to these.
  std::unique_ptr<TerminalStops> terminal_stops;
  if (endpoint->host.empty() && MayTakeImages(invocation.command))
    terminal_stops = std::make_unique<TerminalStops>();
  std::unique_ptr<Interrupts> interrupts;
  const bool takes_interrupts =
      std::visit([](const auto& command) { return kTakesInterrupts<std::decay_t<decltype(command)>>; },
                 invocation.command);
  if (takes_interrupts) {
    interrupts = std::make_unique<Interrupts>(
        invocation.run.stop_on, FollowsJob(invocation.command) ? SignalsForJobs() : std::vector<int>());
  } else {
    UseOneHeap();
  }
  absl::StatusOr<std::unique_ptr<Client>> opened = Client::Open(*endpoint);
  if (!opened.ok()) return output.Fail(opened.status());
  return Perform(Means{**opened, *endpoint, invocation, output}, interrupts.get());
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
