#include "cli/function_arguments.h"

#include <fcntl.h>
#include <google/protobuf/map.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/command_group.h"
#include "cli/durations.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"
#include "cli/paths.h"
#include "functions/function_spec.h"

namespace rekindle::cli {
namespace {

std::vector<std::string> Modules(const std::string& list) {
  return absl::StrSplit(list, ',', absl::SkipEmpty());
}

v1::CloneOptions::Network NetworkNamed(const std::string& name) {
  return name == "none"  ? v1::CloneOptions::NONE
         : name == "own" ? v1::CloneOptions::OWN
                         : v1::CloneOptions::HOST;
}

// Of lines NAME=VALUE, as they are; what is empty or begins with # counts for nothing. Their values are
// secret: no error shows them, nor what stands before a '=', which may be the end of one.
absl::Status ReadVariables(const std::string& path,
                           google::protobuf::Map<std::string, std::string>& variables) {
  constexpr size_t kMostBytes = size_t{1} << 20;  // of what may be taken, with remarks
  const auto wrong = [&](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("--env-file ", path, ": ", parts...));
  };
  const absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY);
  if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("--env-file: ", file.status().message()));
  std::string text(kMostBytes + 1, '\0');
  size_t size = 0;
  for (ssize_t n = 1; n != 0 && size < text.size(); size += static_cast<size_t>(n)) {
    n = ::read(file->get(), text.data() + size, text.size() - size);
    if (n < 0) return wrong(std::generic_category().message(errno));
  }
  if (size > kMostBytes)
    return wrong("it has more than ", FormatBytes(kMostBytes), ": name a file of variables");
  text.resize(size);
  absl::string_view lines = text;
  absl::ConsumePrefix(&lines, "\xef\xbb\xbf");  // as editors of other systems begin a file
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++number;
    line = absl::StripLeadingAsciiWhitespace(absl::StripSuffix(line, "\r"));
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos || equals == 0) return wrong("line ", number, ": write NAME=VALUE");
    const absl::string_view name = line.substr(0, equals);
    if (!functions::IsVariableName(name)) {
      return wrong("line ", number,
                   ": write NAME=VALUE; what stands before '=' is no name of a variable, which has "
                   "letters, digits and '_', a letter first");
    }
    variables[std::string(name)] = std::string(line.substr(equals + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TimeLimit(absl::string_view option, const std::string& text, uint64_t least_ms) {
  const absl::StatusOr<uint64_t> ms = ParseMilliseconds(text);
  if (!ms.ok() && !absl::IsOutOfRange(ms.status()))
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", ms.status().message()));
  if (ms.ok() && *ms >= least_ms && *ms <= functions::kMostTimeoutMs) return ms;
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", text, "' is not between ", least_ms,
                                                 "ms and ", functions::kMostTimeoutMs / 60'000, "m"));
}

}  // namespace

void FunctionArguments::AddFnTo(CLI::App& app) {
  fn_ = AddCommandGroup(app, "fn", "Deploy and invoke functions, compatible with AWS Lambda",
                        "  rekindle fn deploy hello --runtime python --handler app.handler --code ./hello\n"
                        "  rekindle fn invoke hello --payload '{\"name\": \"world\"}'\n"
                        "  rekindle fn logs hello --follow\n");
  AddDeploy();
  AddSet();
  AddInvoke();
  AddCommand(*fn_, "ls", "List the functions", "  rekindle fn ls\n");
  CLI::App* logs = AddCommand(*fn_, "logs", "Show what a function has written",
                              "  rekindle fn logs hello --tail 100 --follow\n"
                              "  rekindle fn logs hello --since 1h\n");
  logs->add_option("name", name_, "The function")->type_name("NAME")->required();
  logs->add_flag("-f,--follow", follow_, "Go on with what it writes from now on");
  tail_option_ = logs->add_option("--tail", tail_, "Only the last lines [all]")->type_name("LINES");
  logs->add_option("--since", since_, "Only invocations that were in work since: 90s, 30m, 36h, 7d")
      ->type_name("AGE");
  CLI::App* rm = AddCommand(*fn_, "rm", "Remove functions, with their code, images and logs",
                            "  rekindle fn rm hello\n");
  rm->add_option("names", names_, "The functions")->type_name("NAME")->required();
  CLI::App* stats = AddCommand(*fn_, "stats", "Show how functions did since the daemon started",
                               "  rekindle fn stats\n  rekindle fn stats hello --json\n");
  stats->add_option("name", name_, "The function [all]")->type_name("NAME");
}

void FunctionArguments::AddDeploy() {
  CLI::App* deploy = AddCommand(
      *fn_, "deploy", "Deploy a function: its code is copied",
      "  rekindle fn deploy hello --runtime python --handler app.handler --code ./hello\n"
      "  rekindle fn deploy resize --runtime python3.11 --handler app.handler --code . --deps numpy,PIL \\\n"
      "      --memory 512M --timeout 30s --env BUCKET=images --provisioned 1\n"
      "  rekindle fn deploy api --runtime nodejs --handler index.handler --code ./api --replace\n"
      "The image of its dependencies is found or built.\n");
  deploy->add_option("name", name_, "The function's name")->type_name("NAME")->required();
  deploy->add_option("--runtime", runtime_, "python, nodejs or provided; Lambda's names of these too")
      ->type_name("RUNTIME")
      ->required();
  deploy->add_option("--handler", handler_, "module.function, as the runtime has it")->type_name("HANDLER");
  deploy->add_option("--code", code_, "Folder with its code")->type_name("DIR")->required();
  CLI::Option* dependencies =
      deploy
          ->add_option("--deps", dependencies_,
                       "Modules to have loaded before its code: names, auto (what it imports), both, or "
                       "none [auto]")
          ->type_name("MODULE,...");
  deploy->add_flag("--no-image", no_image_, "Start each instance from nothing, and make no image of it")
      ->excludes(dependencies);
  AddLayers(deploy);
  AddSettings(deploy);
  deploy->get_option("--cpus")->check(AboveZero());
  CLI::Option* replace =
      deploy->add_flag("--replace", replace_, "Deploy anew what is deployed under this name");
  deploy->add_flag("--force", force_, "With --replace: also where its handler can't be loaded")
      ->needs(replace);
}

void FunctionArguments::AddLayers(CLI::App* command) {
  command
      ->add_option("--layer", layers_,
                   "Folder with what a layer has in /opt; repeatable, later ones hide earlier ones")
      ->type_name("DIR")
      ->allow_extra_args(false);
  command->add_option("--venv", venv_, "Virtual environment of Python with its packages: as one more layer")
      ->type_name("DIR");
}

void FunctionArguments::AddSettings(CLI::App* command) {
  command->add_option("--memory", memory_, "Limit of an instance's memory, 128M to 10G [1G]")
      ->type_name("SIZE");
  command->add_option("--timeout", timeout_, "Limit of an invocation, such as 250ms, 30s, 15m [3s]")
      ->type_name("TIME");
  command
      ->add_option("--start-timeout", start_timeout_,
                   "How long an instance may take to load it, 1s to 15m [60s]")
      ->type_name("TIME");
  command->add_option("--env", environment_, "Environment variable; repeatable")
      ->type_name("K=V")
      ->allow_extra_args(false);
  command
      ->add_option("--env-file", environment_files_,
                   "File with such, a line each, as docker's: no secret is on the command line; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command->add_option("--provisioned", provisioned_, "Instances that are always there [0]")->type_name("N");
  command->add_option("--max-instances", max_instances_, "Instances at the same time, at most [no limit]")
      ->type_name("N");
  command->add_option("--cpus", cpus_, "Limit of an instance's CPU time, in CPUs, at least 0.01 [no limit]")
      ->type_name("N");
  command->add_option("--net", network_, "Network of an instance: host, none, own [host]")
      ->type_name("NET")
      ->check(CLI::IsMember({"host", "none", "own"}));
  command->add_option("--description", description_, "What it is, for people")->type_name("TEXT");
}

void FunctionArguments::AddSet() {
  set_ = AddCommand(
      *fn_, "set", "Change settings of a function, its code or its layers",
      "  rekindle fn set resize --memory 2G --timeout 1m\n"
      "  rekindle fn set resize --env BUCKET=thumbs --no-env DEBUG --max-instances 20\n"
      "  rekindle fn set resize --code ./resize\n"
      "  rekindle fn set resize --code ./resize --venv ./venv\n"
      "What is not given stays as it is. 0 is no limit of --cpus and --max-instances. Instances are\n"
      "started anew for other code, layers, memory, CPUs, network or variables; those at work finish what\n"
      "they do. --layer takes the place of all that it has, --venv of the one that it has. With --code\n"
      "layers that are not given are copied again, too, from the folders that were named before.\n");
  set_->add_option("name", name_, "The function")->type_name("NAME")->required();
  set_->add_option("--code", code_, "Folder with its new code; copied")->type_name("DIR");
  AddLayers(set_);
  set_->add_flag("--no-layers", no_layers_, "Without the layers that it has, and its virtual environment");
  AddSettings(set_);
  set_->add_option("--no-env", removed_environment_, "Remove this environment variable; repeatable")
      ->type_name("K")
      ->allow_extra_args(false);
  set_->add_flag("--force", force_, "Also where its handler can't be loaded with them");
}

void FunctionArguments::AddInvoke() {
  CLI::App* invoke =
      AddCommand(*fn_, "invoke", "Run a function once and print what it returns",
                 "  rekindle fn invoke hello --payload '{\"name\": \"world\"}'\n"
                 "  rekindle fn invoke hello --payload @event.json --log-tail\n"
                 "  generate | rekindle fn invoke hello --payload - --output result.json\n"
                 "When the function fails its error is on standard error, and the exit status is 1.\n");
  invoke->add_option("name", name_, "The function")->type_name("NAME")->required();
  invoke->add_option("--payload", payload_, "The event: JSON, @FILE, or - for standard input [{}]")
      ->type_name("JSON|@FILE|-");
  invoke->add_option("--client-context", context_, "context.client_context of the handler")
      ->type_name("JSON");
  invoke->add_flag("--async", async_, "Return once it is queued");
  invoke->add_flag("--dry-run", dry_run_, "Only check whether it could be invoked");
  invoke->add_flag("--log-tail", log_tail_, "Show the last 4 KiB of its log, on standard error");
  invoke->add_option("--output", output_, "Write what it returns here")->type_name("FILE");
}

void FunctionArguments::AddDepsTo(CLI::App& app) {
  deps_ = AddCommandGroup(app, "deps", "Images of runtimes with libraries loaded, which functions start from",
                          "  rekindle deps build numpy torch --runtime python\n"
                          "  rekindle deps ls\n"
                          "'fn deploy' builds them by itself.\n");
  CLI::App* build =
      AddCommand(*deps_, "build", "Build the image of these modules, if there is none",
                 "  rekindle deps build numpy torch --runtime python\n"
                 "  rekindle deps build pandas --runtime python --venv ~/venv\n"
                 "With modules of a layer it is your own: other users' functions do not start from it.\n");
  build->add_option("modules", modules_, "The modules, by the names under which they are imported")
      ->type_name("MODULE")
      ->required();
  build->add_option("--runtime", runtime_, "python or nodejs")->type_name("RUNTIME")->required();
  build
      ->add_option("--layer", layers_,
                   "Folder with a layer that has some of them, as of 'fn deploy'; repeatable")
      ->type_name("DIR")
      ->allow_extra_args(false);
  build->add_option("--venv", venv_, "Virtual environment of Python that has some of them")->type_name("DIR");
  build->add_flag("--rebuild", rebuild_, "Also where there is one that is up to date");
  AddCommand(*deps_, "ls", "List the images of dependencies", "  rekindle deps ls\n");
  CLI::App* rm = AddCommand(*deps_, "rm", "Remove images of dependencies that no function uses",
                            "  rekindle deps rm deps/python:numpy\n");
  rm->add_option("images", names_, "The images, as 'deps ls' names them")->type_name("IMAGE")->required();
}

absl::StatusOr<Command> FunctionArguments::Finish(const std::string& working_directory) const {
  if (deps_ != nullptr && deps_->parsed()) return FinishDeps(working_directory);
  const std::string command = fn_->get_subcommands().front()->get_name();
  if (command == "deploy") return FinishDeploy(working_directory);
  if (command == "set") return FinishSet(working_directory);
  if (command == "logs") return FinishLogs();
  if (command == "ls") return v1::ListFunctionsRequest();
  if (command == "rm") {
    FunctionRemoval removal;
    removal.names = names_;
    return removal;
  }
  if (command == "stats") {
    v1::FunctionStatsRequest request;
    request.set_name(name_);
    return request;
  }
  FunctionInvocation invocation;
  invocation.request.set_name(name_);
  invocation.request.set_client_context(context_);
  invocation.request.set_async(async_);
  invocation.request.set_dry_run(dry_run_);
  invocation.request.set_tail_log(log_tail_);
  invocation.payload = payload_;
  invocation.output = Absolute(output_, working_directory);
  if ((async_ || dry_run_) && (log_tail_ || !output_.empty())) {
    return absl::InvalidArgumentError(
        "--log-tail and --output are for what comes of an invocation: --async and --dry-run don't wait for "
        "that");
  }
  return invocation;
}

template <typename Settings>
absl::Status FunctionArguments::FillLimits(Settings& settings, const std::string& working_directory) const {
  if (!memory_.empty()) {
    absl::StatusOr<uint64_t> bytes = ParseBytes(memory_);
    if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat("--memory: ", bytes.status().message()));
    if (*bytes == 0)
      return absl::InvalidArgumentError("--memory: 0 is no limit that an instance could run in");
    settings.set_memory_bytes(*bytes);
  }
  if (!timeout_.empty()) {
    RK_ASSIGN_OR_RETURN(const uint64_t ms, TimeLimit("--timeout", timeout_, 1));
    settings.set_timeout_ms(ms);
  }
  if (!start_timeout_.empty()) {
    RK_ASSIGN_OR_RETURN(const uint64_t ms,
                        TimeLimit("--start-timeout", start_timeout_, functions::kLeastStartTimeoutMs));
    settings.set_start_timeout_ms(ms);
  }
  for (const std::string& file : environment_files_)
    RK_RETURN_IF_ERROR(ReadVariables(Absolute(file, working_directory), *settings.mutable_environment()));
  for (const std::string& variable : environment_) {
    RK_ASSIGN_OR_RETURN(auto named, ParseAssignment("--env", variable));
    (*settings.mutable_environment())[named.first] = named.second;
  }
  return absl::OkStatus();
}

absl::StatusOr<Command> FunctionArguments::FinishDeploy(const std::string& working_directory) const {
  v1::DeployFunctionRequest request;
  request.set_replace(replace_);
  request.set_force(force_);
  v1::FunctionSpec& spec = *request.mutable_spec();
  spec.set_name(name_);
  spec.set_runtime(runtime_);
  spec.set_handler(handler_);
  spec.set_code(Absolute(code_, working_directory));
  spec.set_no_image(no_image_);
  if (dependencies_ != "none" && !no_image_) {
    for (const std::string& module : Modules(dependencies_)) {
      if (module == "auto") {
        spec.set_discover_dependencies(true);
      } else {
        spec.add_dependencies(module);
      }
    }
  }
  for (const std::string& layer : layers_) spec.add_layers(Absolute(layer, working_directory));
  spec.set_venv(Absolute(venv_, working_directory));
  RK_RETURN_IF_ERROR(FillLimits(spec, working_directory));
  spec.set_provisioned(provisioned_);
  spec.set_max_instances(max_instances_);
  spec.set_cpus(cpus_);
  spec.set_network(NetworkNamed(network_));
  spec.set_description(description_);
  return request;
}

absl::StatusOr<Command> FunctionArguments::FinishSet(const std::string& working_directory) const {
  v1::SetFunctionRequest request;
  RK_RETURN_IF_ERROR(FillLimits(request, working_directory));
  if (set_->count("--provisioned") > 0) request.set_provisioned(provisioned_);
  if (set_->count("--max-instances") > 0) request.set_max_instances(max_instances_);
  if (set_->count("--cpus") > 0) request.set_cpus(cpus_);
  if (set_->count("--net") > 0) request.set_network(NetworkNamed(network_));
  if (set_->count("--description") > 0) request.set_description(description_);
  for (const std::string& variable : removed_environment_) {
    if (absl::StrContains(variable, "=")) {
      return absl::InvalidArgumentError(absl::StrCat("--no-env '", variable, "': write the name alone"));
    }
    request.add_remove_environment(variable);
  }
  for (const std::string& layer : layers_) request.add_layers(Absolute(layer, working_directory));
  if (set_->count("--venv") > 0) request.set_venv(Absolute(venv_, working_directory));
  request.set_no_layers(no_layers_);
  if (set_->count("--code") > 0) request.set_code(Absolute(code_, working_directory));
  if (request.ByteSizeLong() == 0) {
    return absl::InvalidArgumentError(
        "say what is to be another one: --code, --layer, --memory, --timeout, --env, …");
  }
  request.set_name(name_);
  request.set_force(force_);
  return request;
}

absl::StatusOr<Command> FunctionArguments::FinishLogs() const {
  v1::FunctionLogsRequest request;
  request.set_name(name_);
  request.set_follow(follow_);
  if (tail_option_->count() > 0) request.set_tail_lines(tail_);
  if (!since_.empty()) {
    RK_ASSIGN_OR_RETURN(int64_t age, ParseAge(since_));
    request.set_since_unix_ns(std::max<int64_t>(UnixNanos() - age, 1));
  }
  return request;
}

absl::StatusOr<Command> FunctionArguments::FinishDeps(const std::string& working_directory) const {
  const std::string command = deps_->get_subcommands().front()->get_name();
  if (command == "ls") return v1::ListDependenciesRequest();
  if (command == "rm") {
    DependenciesRemoval removal;
    removal.images = names_;
    return removal;
  }
  v1::BuildDependenciesRequest request;
  request.set_runtime(runtime_);
  request.set_rebuild(rebuild_);
  for (const std::string& layer : layers_) request.add_layers(Absolute(layer, working_directory));
  request.set_venv(Absolute(venv_, working_directory));
  for (const std::string& list : modules_) {
    for (const std::string& module : Modules(list)) request.add_modules(module);
  }
  return request;
}

}  // namespace rekindle::cli
