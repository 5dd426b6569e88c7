#include "functions/layer_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"

namespace rekindle::functions {
namespace {

// What a layer has, for one who finds it in /opt.
constexpr const char* kOfLayers[] = {"python", "nodejs", "bin", "lib"};

bool IsFolder(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// "3.11" of each lib/python3.11/site-packages.
std::vector<std::string> VersionsIn(const std::string& environment) {
  std::vector<std::string> versions;
  const std::string libraries = absl::StrCat(environment, "/lib");
  auto names = ListDirectory(libraries);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    absl::string_view version = name;
    if (absl::ConsumePrefix(&version, "python") &&
        IsFolder(absl::StrCat(libraries, "/", name, "/site-packages"))) {
      versions.emplace_back(version);
    }
  }
  return versions;
}

absl::StatusOr<LayerFolder> FindEnvironment(const std::string& folder, const Runtime& runtime,
                                            const std::string& python) {
  if (python.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(folder,
                                                   " is a virtual environment of Python, and the runtime is ",
                                                   runtime.Name(), ": leave it out"));
  }
  const std::vector<std::string> versions = VersionsIn(folder);
  if (std::find(versions.begin(), versions.end(), python) == versions.end()) {
    if (versions.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, " has pyvenv.cfg, as a virtual environment, but no folder lib/python", python,
                       "/site-packages: make it anew with 'python", python, " -m venv'"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " is a virtual environment of Python ", absl::StrJoin(versions, ", "), ", and the runtime ",
        runtime.Name(), " is Python ", python, " here: make it anew with 'python", python,
        " -m venv', or deploy with --runtime python", versions.front(), ", if this node has that"));
  }
  LayerFolder found;
  const std::string packages = absl::StrCat("lib/python", python, "/site-packages");
  found.source = absl::StrCat(folder, "/", packages);
  found.place = absl::StrCat("python/", packages);
  // Nothing of where it lay, or who made it: the same packages are the same layer.
  found.environment = absl::StrCat("version = ", python, "\n");
  return found;
}

}  // namespace

absl::StatusOr<LayerFolder> FindLayerFolder(const std::string& folder, const Runtime& runtime,
                                            const std::string& python, bool must_be_environment) {
  if (PathExists(absl::StrCat(folder, "/", kEnvironmentFile)))
    return FindEnvironment(folder, runtime, python);
  const auto names = ListDirectory(folder);
  // Why it can't be read who copies it says best.
  if (!names.ok()) return LayerFolder{folder, "", ""};
  if (must_be_environment) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " is no virtual environment, for it has no pyvenv.cfg: make one with 'python3 -m venv ",
        folder, "', or, if it has what a layer has in /opt, name it with --layer"));
  }
  const auto has = [&](const char* name) {
    return std::find(names->begin(), names->end(), name) != names->end();
  };
  // What lies beside one of these may be anything: the function reads it.
  const bool is_layer = std::any_of(std::begin(kOfLayers), std::end(kOfLayers), has);
  const auto is_package = [&](const std::string& name) {
    // As pip leaves it, who puts programs into a folder bin.
    if (absl::EndsWith(name, ".dist-info") || absl::EndsWith(name, ".egg-info")) return true;
    return !is_layer &&
           (absl::EndsWith(name, ".py") || PathExists(absl::StrCat(folder, "/", name, "/__init__.py")));
  };
  const auto is_node_package = [&](const std::string& name) {
    return !is_layer && PathExists(absl::StrCat(folder, "/", name, "/package.json"));
  };
  if (runtime.kind == RuntimeKind::kPython && !has("python") &&
      std::any_of(names->begin(), names->end(), is_package)) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder,
        " is neither a layer nor a virtual environment: packages lie in it, which a layer has in "
        "its folder python, where nothing would find them. Install them with 'pip install "
        "--target ",
        folder, "/python', or into a virtual environment"));
  }
  if (runtime.kind == RuntimeKind::kNode && has("node_modules") && !has("nodejs")) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     " is no layer: it has node_modules, which a layer has in its folder nodejs, where "
                     "nothing would find them. Put them into ",
                     folder, "/nodejs"));
  }
  if (runtime.kind == RuntimeKind::kNode && std::any_of(names->begin(), names->end(), is_node_package)) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder,
        " is no layer: packages lie in it, which a layer has in its folder nodejs/node_modules, where ",
        "nothing would find them. Put them into ", folder, "/nodejs/node_modules"));
  }
  return LayerFolder{folder, "", ""};
}

}  // namespace rekindle::functions
