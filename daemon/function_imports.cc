#include "daemon/function_imports.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "daemon/function_instances.h"
#include "daemon/function_runtime.h"
#include "daemon/owner_program.h"
#include "functions/scheduler_errors.h"
#include "restore/hook_message.h"

namespace rekindle::daemon {
namespace {

using functions::RuntimeKind;

// It loads more than an instance, which finds its dependencies loaded: one that has little time to start has
// as much here as it would have by default.
constexpr absl::Duration kLeastDiscovery = absl::Milliseconds(functions::kDefaultStartTimeoutMs);
// Of what the program that finds imports says, which the function's code may have written: each byte of it
// can become many of ours. Of some thousand names.
constexpr size_t kMostReported = size_t{2} << 20;
constexpr int kDeepestReported = 8;
constexpr size_t kShownOfOutput = 300;
constexpr size_t kShownPlaces = 8;
// The program for Python keeps to the time by itself.
constexpr absl::Duration kDiscoveryGrace = absl::Seconds(10);

absl::Duration LongestDiscovery(const functions::FunctionRecord& record) {
  return std::max(kLeastDiscovery, absl::Milliseconds(record.spec.start_timeout_ms));
}

// What lies deeper is left out before it takes memory.
nlohmann::json ParseReport(absl::string_view text) {
  return nlohmann::json::parse(
      text,
      [](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
        return depth <= kDeepestReported;
      },
      /*allow_exceptions=*/false);
}

// Loads a function's handler, and says what it imports.
absl::StatusOr<std::vector<std::string>> DiscoveryCommand(const functions::FunctionRecord& record) {
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> runtime, RuntimeCommand(record.spec.runtime, ""));
  if (record.spec.runtime.kind == RuntimeKind::kNode) {
    RK_ASSIGN_OR_RETURN(std::string program, FindRuntimeFile("node/discover_imports.js"));
    return std::vector<std::string>{runtime[0], std::move(program)};
  }
  RK_ASSIGN_OR_RETURN(std::string program, FindRuntimeFile("python/discover_imports.py"));
  std::vector<std::string> command = {
      runtime[0],     std::move(program),
      "--code",       record.folder->code(),
      "--handler",    record.spec.handler,
      "--time-limit", absl::StrCat(absl::ToInt64Seconds(LongestDiscovery(record)))};
  // Later ones hide earlier ones.
  const std::vector<std::string> layers = LayersOf(record);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
    command.insert(command.end(), {"--opt", *layer});
  return command;
}

std::string TimedOut(const functions::FunctionRecord& record) {
  return absl::StrCat(
      "Sandbox.Timedout: the module of handler '", record.spec.handler, "' was not loaded within ",
      absl::FormatDuration(LongestDiscovery(record)),
      ": what it does outside of the handler has to come to an end; if it only takes long, give "
      "it --start-timeout");
}

// For people, as is all that follows.
std::string LastWritten(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  text.remove_prefix(text.size() - std::min(text.size(), kShownOfOutput));
  return text.empty() ? "" : absl::StrCat(". It wrote: ", text);
}

// Where it went wrong, a line each: the innermost are last in Python, and first in Node.js, whose own places,
// and those of the runtime, are left out.
std::string PlacesOf(const nlohmann::json& error) {
  std::vector<std::string> places = restore::TextsOf(error, "stackTrace");
  if (places.size() > kShownPlaces)
    places.erase(places.begin(), places.end() - static_cast<std::ptrdiff_t>(kShownPlaces));
  const auto runtime = FindRuntimeFile("node");
  for (std::string& place : restore::TextsOf(error, "trace")) {
    if (!absl::StartsWith(place, "    at ") || absl::StrContains(place, "node:internal/") ||
        (runtime.ok() && absl::StrContains(place, *runtime + "/")) || places.size() == kShownPlaces) {
      continue;
    }
    places.push_back(std::move(place));
  }
  std::string text;
  for (const std::string& place : places)
    absl::StrAppend(&text, "\n", absl::StripTrailingAsciiWhitespace(place));
  return text;
}

// Whatever it was that was killed: the runtime's error says a signal's name alone.
std::string OutOfMemory(const functions::FunctionRecord& record) {
  return absl::StrCat("Runtime.OutOfMemory: loading it took more than its memory limit of ",
                      record.spec.memory_bytes >> 20, " MB: deploy it with more --memory");
}

std::string Explain(const functions::FunctionRecord& record, const nlohmann::json& result,
                    absl::string_view written, bool out_of_memory, bool* refused) {
  const auto error = result.find("error");
  if (error == result.end()) return "Runtime.Unknown";
  const std::string type = restore::TextOf(*error, "errorType", "Runtime.Unknown");
  *refused = type != functions::kTimedOutType;
  if (out_of_memory && type == functions::kExitType) {
    return absl::StrCat(OutOfMemory(record),
                        LastWritten(result.contains("output") ? restore::TextOf(result, "output") : written));
  }
  return absl::StrCat(
      type == functions::kTimedOutType ? TimedOut(record)
                                       : absl::StrCat(type, ": ", restore::TextOf(*error, "errorMessage")),
      LastWritten(result.contains("output") ? restore::TextOf(result, "output") : written), PlacesOf(*error));
}

}  // namespace

absl::StatusOr<FunctionImports> FindImports(Node& node, const functions::FunctionRecord& record,
                                            restore::OwnTemporary temporary, const Cancellation* cancel,
                                            bool* refused) {
  *refused = false;
  OwnerProgram program;
  program.name = "discovery";
  RK_ASSIGN_OR_RETURN(program.command, DiscoveryCommand(record));
  InstanceIdentity identity;
  identity.instance = program.name;
  program.environment = InstanceEnvironment(record, identity);
  program.environment.merge(BaseEnvironment());
  program.environment.erase("NODE_OPTIONS");  // in instances it comes too late to have an effect
  program.working_directory = record.folder->code();
  program.owner = record.owner;
  program.temporary = std::move(temporary);
  program.network = FunctionInstances::NetworkOf(record.spec);
  program.limits = FunctionInstances::LimitsOf(record.spec);
  program.longest = LongestDiscovery(record) + kDiscoveryGrace;
  program.most_output = kMostReported;
  const absl::StatusOr<OwnerProgramEnd> end = RunOwnerProgram(node, program, cancel);
  if (!end.ok())
    return Annotate(end.status(), absl::StrCat("finding out what function '", record.name(), "' imports"));
  const std::string& text = end->output;
  // What the code has written comes first.
  const size_t line = text.rfind("\n{");
  const size_t begin = line != std::string::npos ? line : text.find('{');
  const nlohmann::json result =
      ParseReport(absl::string_view(text).substr(begin == std::string::npos ? 0 : begin));
  if (!result.is_object()) {
    const std::string ended = end->out_of_memory
                                  ? OutOfMemory(record)
                                  : absl::StrCat("Runtime.ExitError: its process ended while it was loaded: ",
                                                 end->exit ? end->exit->ToString() : "");
    return absl::FailedPreconditionError(
        absl::StrCat(end->late ? TimedOut(record) : ended, LastWritten(text)));
  }
  if (!restore::FlagOf(result, "ok")) {
    return absl::FailedPreconditionError(
        Explain(record, result, absl::string_view(text).substr(0, begin), end->out_of_memory, refused));
  }
  FunctionImports imports;
  imports.of_machine = restore::TextsOf(result, "imports");
  imports.of_layers = restore::TextsOf(result, "layer_imports");
  imports.unrenewed = restore::TextsOf(result, "unrenewed");
  imports.drawn = restore::TextsOf(result, "drawn");
  if (const auto seconds = result.find("seconds"); seconds != result.end() && seconds->is_number())
    imports.seconds = seconds->get<double>();
  // They are loaded as our own user, and the code may have written all of this.
  for (std::vector<std::string>* names : {&imports.of_machine, &imports.of_layers}) {
    std::erase_if(*names, [&](const std::string& name) {
      return !functions::CheckDependency(record.spec.runtime.kind, name).ok();
    });
  }
  return imports;
}

}  // namespace rekindle::daemon
