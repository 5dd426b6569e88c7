// What a function is to be, as its user says it, checked by the rules of docs/functions.md. Pure values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rekindle/v1/functions.pb.h"

namespace rekindle::functions {

enum class RuntimeKind : uint8_t {
  kPython,
  kNode,
  kProvided,  // the code folder holds the program: `bootstrap`
};

// "python", "python3.11", "nodejs20.x", "provided.al2023". Is there such a version on this node? Not asked
// here.
struct Runtime {
  RuntimeKind kind = RuntimeKind::kPython;
  std::string version;  // "3.11", "20", "al2023"; empty: any

  // As Lambda spells it.
  std::string Name() const;
  friend bool operator==(const Runtime&, const Runtime&) = default;
};

// InvalidArgument says which there are.
absl::StatusOr<Runtime> ParseRuntime(absl::string_view text);

// Limits, those of Lambda where it has one.
inline constexpr size_t kLongestFunctionName = 64;
inline constexpr size_t kLongestHandler = 128;
inline constexpr size_t kLongestDescription = 256;
inline constexpr size_t kMostLayers = 5;
inline constexpr size_t kMostDependencies = 256;
inline constexpr size_t kMostEnvironmentBytes = 4 << 10;  // names and values together
inline constexpr uint64_t kLeastMemoryBytes = uint64_t{128} << 20;
inline constexpr uint64_t kMostMemoryBytes = uint64_t{10240} << 20;
// Lambda's 128 MiB are too few for most libraries worth an image: torch alone takes three times that. It is a
// limit, nothing is set aside for it.
inline constexpr uint64_t kDefaultMemoryBytes = uint64_t{1024} << 20;
inline constexpr uint64_t kMostTimeoutMs = 15 * 60 * 1000;
inline constexpr uint64_t kDefaultTimeoutMs = 3000;
inline constexpr uint64_t kLeastStartTimeoutMs = 1000;
inline constexpr uint64_t kDefaultStartTimeoutMs = 60 * 1000;
inline constexpr uint32_t kMostInstances = 10000;

struct FunctionSpec {
  std::string name;
  Runtime runtime;
  std::string handler;                    // empty only with kProvided
  std::string code;                       // absolute, without "." and ".." and a '/' at the end
  std::vector<std::string> dependencies;  // sorted, each once
  bool discover_dependencies = false;     // never with kProvided
  std::vector<std::string> layers;        // as `code`
  std::string venv;                       // as `code`; empty: none
  std::map<std::string, std::string> environment;
  uint64_t memory_bytes = kDefaultMemoryBytes;
  uint64_t timeout_ms = kDefaultTimeoutMs;
  uint64_t start_timeout_ms = kDefaultStartTimeoutMs;  // until an instance has loaded it
  uint32_t provisioned = 0;
  v1::CloneOptions::Network network = v1::CloneOptions::HOST;
  double cpus = 0;  // 0: no limit
  std::string description;
  uint32_t max_instances = 0;  // 0: no limit of its own
  bool no_image = false;       // though the runtime could have one; never with kProvided

  // All that is copied beside the code; later ones hide earlier ones.
  std::vector<std::string> LayerFolders() const {
    std::vector<std::string> folders = layers;
    if (!venv.empty()) folders.push_back(venv);
    return folders;
  }
  // Are its instances started from images, where there are any?
  bool starts_from_images() const { return runtime.kind != RuntimeKind::kProvided && !no_image; }
  friend bool operator==(const FunctionSpec&, const FunctionSpec&) = default;
};

// Checked, with defaults filled in. InvalidArgument names the field, what is wrong and what would be right.
// That folders exist is for who copies them.
absl::StatusOr<FunctionSpec> FunctionSpecFrom(const v1::FunctionSpec& spec);
v1::FunctionSpec ToProto(const FunctionSpec& spec);

absl::Status CheckFunctionName(absl::string_view name);
// Of the environment: letters, of whichever alphabet, digits and '_'; one of the Latin alphabet first.
bool IsVariableName(absl::string_view name);
// Folders of layers and a virtual environment, as `layers` and `venv` of a spec; checked as a spec's are.
struct LayerNames {
  std::vector<std::string> layers;
  std::string venv;
};
absl::StatusOr<LayerNames> CheckLayers(const std::vector<std::string>& layers, const std::string& venv,
                                       RuntimeKind kind);
// Names of modules as `kind` imports them: "sklearn.linear_model"; "@aws-sdk/client-s3".
absl::Status CheckDependency(RuntimeKind kind, absl::string_view module);

}  // namespace rekindle::functions
