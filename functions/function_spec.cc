#include "functions/function_spec.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/cpu_limit.h"
#include "base/human_units.h"
#include "base/status.h"

namespace rekindle::functions {
namespace {

template <typename... Parts>
absl::Status Wrong(absl::string_view field, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", parts...));
}

bool AllOf(absl::string_view text, bool (*is_good)(char)) {
  return std::all_of(text.begin(), text.end(), is_good);
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && AllOf(text, [](char c) { return absl::ascii_isdigit(c); });
}

bool IsIdentifier(absl::string_view text) {
  return !text.empty() && !absl::ascii_isdigit(text[0]) && AllOf(text, [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || static_cast<unsigned char>(c) >= 0x80;
  });
}

bool IsPrintable(absl::string_view text) {
  return AllOf(text, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f; });
}

// What the runtime and the daemon set for each instance.
constexpr absl::string_view kReserved[] = {
    "_HANDLER",
    "_X_AMZN_TRACE_ID",
    "AWS_EXECUTION_ENV",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "AWS_LAMBDA_LOG_GROUP_NAME",
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_RUNTIME_API",
    "LAMBDA_RUNTIME_DIR",
    "LAMBDA_TASK_ROOT",
};

absl::Status CheckVariable(absl::string_view name, absl::string_view value) {
  if (!IsVariableName(name)) {
    // Lambda's rule. _HANDLER and the like are named below, for they are more likely meant.
    if (std::find(std::begin(kReserved), std::end(kReserved), name) == std::end(kReserved)) {
      return Wrong("environment", "'", name,
                   "' is no name of a variable: letters, digits and '_', a letter first");
    }
  }
  if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved) ||
      absl::StartsWith(name, "REKINDLE_")) {
    return Wrong("environment", name,
                 " is reserved: the runtime sets it for every instance. Use another name");
  }
  if (value.find('\0') != absl::string_view::npos) {
    return Wrong("environment", "the value of ", name, " has a zero byte in it: leave it out");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckFolder(absl::string_view field, const std::string& folder) {
  if (folder.empty()) return Wrong(field, "no folder is given: name the folder, absolute");
  if (folder[0] != '/') return Wrong(field, "'", folder, "' is not absolute: begin it with '/'");
  if (folder.find('\0') != std::string::npos) return Wrong(field, "the folder's name has a zero byte in it");
  std::string normal = std::filesystem::path(folder).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  if (normal == "/") return Wrong(field, "'", folder, "' is the whole file system: name a folder in it");
  return normal;
}

absl::Status CheckHandler(RuntimeKind kind, absl::string_view handler) {
  if (handler.size() > kLongestHandler) {
    return Wrong("handler", "it has ", handler.size(), " characters, the limit is ", kLongestHandler);
  }
  if (!IsPrintable(handler))
    return Wrong("handler", "'", handler, "' has blanks or control characters in it");
  if (kind == RuntimeKind::kProvided) return absl::OkStatus();  // the program's own matter, if it looks
  const char* shape = kind == RuntimeKind::kPython
                          ? "write module.function, such as app.handler, or folder/module.function"
                          : "write module.function, such as index.handler, or folder/module.function";
  if (handler.empty()) return Wrong("handler", "none is given: ", shape);
  std::vector<std::string> parts = absl::StrSplit(handler, '/');
  const std::string last = parts.back();
  parts.pop_back();
  if (absl::StartsWith(handler, "/") || absl::StrContains(handler, "..")) {
    return Wrong("handler", "'", handler, "' leads out of the code folder: ", shape);
  }
  for (const std::string& folder : parts) {
    if (folder.empty()) return Wrong("handler", "'", handler, "' names an empty folder: ", shape);
  }
  std::vector<std::string> names = absl::StrSplit(last, '.');
  const bool whole = names.size() >= 2 &&
                     std::none_of(names.begin(), names.end(), [](const auto& name) { return name.empty(); });
  if (!whole) return Wrong("handler", "'", handler, "' does not name a module and a function in it: ", shape);
  return absl::OkStatus();
}

absl::Status CheckEnvironment(const std::map<std::string, std::string>& environment) {
  size_t bytes = 0;
  for (const auto& [name, value] : environment) {
    RK_RETURN_IF_ERROR(CheckVariable(name, value));
    bytes += name.size() + value.size();
  }
  if (bytes > kMostEnvironmentBytes) {
    return Wrong("environment", "its names and values have ", bytes, " bytes, the limit is ",
                 kMostEnvironmentBytes, ": put what is long into a file of the code folder");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const FunctionSpec& spec) {
  if (spec.memory_bytes < kLeastMemoryBytes || spec.memory_bytes > kMostMemoryBytes) {
    return Wrong("memory", FormatBytes(spec.memory_bytes), " is not between ", FormatBytes(kLeastMemoryBytes),
                 " and ", FormatBytes(kMostMemoryBytes));
  }
  if (spec.timeout_ms > kMostTimeoutMs) {
    return Wrong("timeout", FormatSeconds(static_cast<double>(spec.timeout_ms) / 1000),
                 " is over the limit of ", kMostTimeoutMs / 60000, " minutes");
  }
  if (spec.start_timeout_ms < kLeastStartTimeoutMs || spec.start_timeout_ms > kMostTimeoutMs) {
    return Wrong("start_timeout", FormatSeconds(static_cast<double>(spec.start_timeout_ms) / 1000),
                 " is not between ", kLeastStartTimeoutMs / 1000, " s and ", kMostTimeoutMs / 60000,
                 " minutes");
  }
  if (!IsCpuLimit(spec.cpus)) {
    return Wrong("cpus", spec.cpus, " is no number of CPUs: write ", kLeastCpus, " to ", kMostCpus,
                 ", or 0 for no limit");
  }
  if (spec.provisioned > kMostInstances || spec.max_instances > kMostInstances) {
    return Wrong(spec.provisioned > kMostInstances ? "provisioned" : "max_instances", "the limit is ",
                 kMostInstances);
  }
  if (spec.max_instances != 0 && spec.provisioned > spec.max_instances) {
    return Wrong("provisioned", spec.provisioned, " instances are to be there always, but only ",
                 spec.max_instances, " may be: raise max_instances, or lower it");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Runtime::Name() const {
  switch (kind) {
    case RuntimeKind::kPython:
      return absl::StrCat("python", version);
    case RuntimeKind::kNode:
      return version.empty() ? "nodejs" : absl::StrCat("nodejs", version, ".x");
    case RuntimeKind::kProvided:
      break;
  }
  return version.empty() ? "provided" : absl::StrCat("provided.", version);
}

absl::StatusOr<Runtime> ParseRuntime(absl::string_view text) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "python")) {
    std::vector<std::string> parts = absl::StrSplit(rest, '.');
    if (rest.empty() ||
        (parts[0] == "3" && (parts.size() == 1 || (parts.size() == 2 && IsNumber(parts[1]))))) {
      return Runtime{RuntimeKind::kPython, std::string(rest)};
    }
  } else if (absl::ConsumePrefix(&rest, "nodejs")) {
    if (rest.empty()) return Runtime{RuntimeKind::kNode, ""};
    if (absl::ConsumeSuffix(&rest, ".x") && IsNumber(rest))
      return Runtime{RuntimeKind::kNode, std::string(rest)};
  } else if (absl::ConsumePrefix(&rest, "provided")) {
    if (rest.empty()) return Runtime{RuntimeKind::kProvided, ""};
    if (rest == ".al2" || rest == ".al2023") {
      return Runtime{RuntimeKind::kProvided, std::string(rest.substr(1))};
    }
  }
  return Wrong(
      "runtime", "'", text,
      "' is not one of python, nodejs and provided, or Lambda's names of these (python3.11, nodejs20.x, "
      "provided.al2023). Anything else runs with provided: a program named bootstrap in the code folder "
      "that speaks the Lambda Runtime API");
}

bool IsVariableName(absl::string_view name) {
  return IsIdentifier(name) && absl::ascii_isalpha(static_cast<unsigned char>(name[0]));
}

absl::Status CheckFunctionName(absl::string_view name) {
  const bool good =
      !name.empty() && AllOf(name, [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; });
  if (good && name.size() <= kLongestFunctionName) return absl::OkStatus();
  return Wrong("name", "'", name, "' is no name of a function: 1 to ", kLongestFunctionName,
               " letters, digits, '-' and '_'");
}

absl::StatusOr<LayerNames> CheckLayers(const std::vector<std::string>& layers, const std::string& venv,
                                       RuntimeKind kind) {
  if (layers.size() > kMostLayers) {
    return Wrong("layers", "there are ", layers.size(), ", the limit is ", kMostLayers,
                 ": put the contents of some into one folder");
  }
  LayerNames names;
  for (const std::string& layer : layers) {
    RK_ASSIGN_OR_RETURN(std::string folder, CheckFolder("layers", layer));
    names.layers.push_back(std::move(folder));
  }
  if (venv.empty()) return names;
  if (kind != RuntimeKind::kPython)
    return Wrong("venv", "virtual environments are Python's: leave it out, or deploy with --runtime python");
  RK_ASSIGN_OR_RETURN(names.venv, CheckFolder("venv", venv));
  return names;
}

absl::Status CheckDependency(RuntimeKind kind, absl::string_view module) {
  if (kind == RuntimeKind::kProvided) {
    return Wrong("dependencies", "the runtime 'provided' loads what it needs by itself: leave them out");
  }
  if (kind == RuntimeKind::kPython) {
    std::vector<absl::string_view> parts = absl::StrSplit(module, '.');
    if (std::find(parts.begin(), parts.end(), "__main__") != parts.end()) {
      return Wrong("dependencies", "'", module, "' is a program, and would be run: name a module to load");
    }
    if (std::all_of(parts.begin(), parts.end(), IsIdentifier)) return absl::OkStatus();
    return Wrong(
        "dependencies", "'", module,
        "' is no name of a Python module: write it as after import (sklearn.linear_model), not as the "
        "package that brings it is called (scikit-learn)");
  }
  absl::string_view rest = module;
  const bool scoped = absl::ConsumePrefix(&rest, "@"), builtin = absl::ConsumePrefix(&rest, "node:");
  std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  const bool good = !(scoped && builtin) && parts.size() >= (scoped ? 2u : 1u) &&
                    std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
                      return !part.empty() && part[0] != '.' && AllOf(part, [](char c) {
                        return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~';
                      });
                    });
  if (good) return absl::OkStatus();
  return Wrong("dependencies", "'", module,
               "' is no name of a Node.js module: write it as in require(), such as @aws-sdk/client-s3");
}

absl::StatusOr<FunctionSpec> FunctionSpecFrom(const v1::FunctionSpec& from) {
  FunctionSpec spec;
  RK_RETURN_IF_ERROR(CheckFunctionName(from.name()));
  spec.name = from.name();
  if (from.runtime().empty()) return Wrong("runtime", "none is given: python, nodejs or provided");
  RK_ASSIGN_OR_RETURN(spec.runtime, ParseRuntime(from.runtime()));
  RK_RETURN_IF_ERROR(CheckHandler(spec.runtime.kind, from.handler()));
  spec.handler = from.handler();
  RK_ASSIGN_OR_RETURN(spec.code, CheckFolder("code", from.code()));
  for (const std::string& module : from.dependencies()) {
    RK_RETURN_IF_ERROR(CheckDependency(spec.runtime.kind, module));
    spec.dependencies.push_back(module);
  }
  std::sort(spec.dependencies.begin(), spec.dependencies.end());
  spec.dependencies.erase(std::unique(spec.dependencies.begin(), spec.dependencies.end()),
                          spec.dependencies.end());
  if (spec.dependencies.size() > kMostDependencies) {
    return Wrong("dependencies", "there are ", spec.dependencies.size(), ", the limit is ", kMostDependencies,
                 ": name a module that imports the others");
  }
  spec.discover_dependencies = from.discover_dependencies() && spec.runtime.kind != RuntimeKind::kProvided;
  spec.no_image = from.no_image() && spec.runtime.kind != RuntimeKind::kProvided;
  if (spec.no_image && (spec.discover_dependencies || !spec.dependencies.empty())) {
    return Wrong("no_image", "its dependencies would be loaded in an image: name none, or have one");
  }
  RK_ASSIGN_OR_RETURN(LayerNames layers, CheckLayers({from.layers().begin(), from.layers().end()},
                                                     from.venv(), spec.runtime.kind));
  spec.layers = std::move(layers.layers);
  spec.venv = std::move(layers.venv);
  spec.environment.insert(from.environment().begin(), from.environment().end());
  RK_RETURN_IF_ERROR(CheckEnvironment(spec.environment));
  if (from.memory_bytes() != 0) spec.memory_bytes = from.memory_bytes();
  if (from.timeout_ms() != 0) spec.timeout_ms = from.timeout_ms();
  if (from.start_timeout_ms() != 0) spec.start_timeout_ms = from.start_timeout_ms();
  spec.provisioned = from.provisioned();
  if (!v1::CloneOptions::Network_IsValid(from.network())) {
    return Wrong("network", static_cast<int>(from.network()),
                 " is none that this version knows: host, none, own");
  }
  spec.network = from.network();
  if (spec.network != v1::CloneOptions::HOST &&
      (spec.no_image || spec.runtime.kind == RuntimeKind::kProvided)) {
    return Wrong("network", "only copies of an image get one of their own, and this function has none: ",
                 spec.no_image ? "let it have one (without --no-image), or use the host's"
                               : "use the host's, or a runtime that images are taken of (python, nodejs)");
  }
  spec.cpus = from.cpus();
  spec.max_instances = from.max_instances();
  RK_RETURN_IF_ERROR(CheckLimits(spec));
  if (from.description().size() > kLongestDescription) {
    return Wrong("description", "it has ", from.description().size(), " bytes, the limit is ",
                 kLongestDescription);
  }
  spec.description = from.description();
  return spec;
}

v1::FunctionSpec ToProto(const FunctionSpec& spec) {
  v1::FunctionSpec to;
  to.set_name(spec.name);
  to.set_runtime(spec.runtime.Name());
  to.set_handler(spec.handler);
  to.set_code(spec.code);
  to.mutable_dependencies()->Assign(spec.dependencies.begin(), spec.dependencies.end());
  to.set_discover_dependencies(spec.discover_dependencies);
  to.mutable_layers()->Assign(spec.layers.begin(), spec.layers.end());
  to.set_venv(spec.venv);
  to.mutable_environment()->insert(spec.environment.begin(), spec.environment.end());
  to.set_memory_bytes(spec.memory_bytes);
  to.set_timeout_ms(spec.timeout_ms);
  to.set_start_timeout_ms(spec.start_timeout_ms);
  to.set_provisioned(spec.provisioned);
  to.set_network(spec.network);
  to.set_cpus(spec.cpus);
  to.set_description(spec.description);
  to.set_max_instances(spec.max_instances);
  to.set_no_image(spec.no_image);
  return to;
}

}  // namespace rekindle::functions
