#include "daemon/function_runtime.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "daemon/node.h"

namespace rekindle::daemon {
namespace {

using functions::RuntimeKind;

constexpr char kPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

std::string OwnFolder() {
  std::string self(PATH_MAX, '\0');
  const ssize_t n = ::readlink("/proc/self/exe", self.data(), self.size());
  self.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return self.substr(0, self.rfind('/'));
}

std::string FindInterpreter(const std::string& name) {
  for (const char* folder : {"/usr/bin/", "/usr/local/bin/", "/bin/"}) {
    std::string path = absl::StrCat(folder, name);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

// "20". Asked once.
absl::StatusOr<std::string> NodeVersion(const std::string& interpreter) {
  static absl::Mutex mutex(absl::kConstInit);
  static std::string known;
  absl::MutexLock lock(&mutex);
  if (!known.empty()) return known;
  RK_ASSIGN_OR_RETURN(CommandResult asked, RunCommand({interpreter, "--version"}, absl::Seconds(10)));
  absl::string_view text = asked.output;
  if (!asked.exit.ok() || !absl::ConsumePrefix(&text, "v")) {
    return absl::InternalError(absl::StrCat("asking ", interpreter, " for its version: ", asked.output));
  }
  known = std::string(text.substr(0, text.find('.')));
  return known;
}

}  // namespace

absl::StatusOr<std::string> FindRuntimeFile(const std::string& name) {
  const std::string own = OwnFolder();
  std::vector<std::string> folders = {absl::StrCat(own, "/../lib/rekindle/runtimes"),
                                      absl::StrCat(own, "/../../../functions/runtimes")};  // a build folder
  if (const char* set = std::getenv("REKINDLE_RUNTIMES")) folders.insert(folders.begin(), set);
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", name);
    char resolved[PATH_MAX];
    if (::realpath(path.c_str(), resolved) != nullptr) return std::string(resolved);
  }
  return absl::NotFoundError(
      absl::StrCat("finding the runtime ", name, ": it is in none of ", absl::StrJoin(folders, ", "),
                   "; install Rekindle again (cmake --install), or set REKINDLE_RUNTIMES"));
}

std::vector<std::string> OwnFolders() {
  const std::string programs = OwnFolder();
  std::vector<std::string> folders = {programs.substr(0, programs.rfind('/'))};
  if (auto runtimes = FindRuntimeFile(""); runtimes.ok()) folders.push_back(*std::move(runtimes));
  return folders;
}

std::vector<std::string> KeptFolders(const NodeOptions& node) {
  std::vector<std::string> kept = OwnFolders();
  // The functions' code is in the store.
  kept.insert(kept.end(), {node.runtime_directory, node.log_directory, node.store});
  return kept;
}

restore::OwnTemporary TemporaryOn(const NodeOptions& node, uint64_t bytes) {
  return {bytes, KeptFolders(node), {}, bytes};
}

absl::StatusOr<std::vector<std::string>> RuntimeCommand(const functions::Runtime& runtime,
                                                        const std::string& code) {
  if (runtime.kind == RuntimeKind::kProvided)
    return std::vector<std::string>{absl::StrCat(code, "/bootstrap")};
  const bool python = runtime.kind == RuntimeKind::kPython;
  // Node.js has no names for its versions.
  const std::string name =
      python ? absl::StrCat("python", runtime.version.empty() ? "3" : runtime.version) : "node";
  const std::string interpreter = FindInterpreter(name);
  if (interpreter.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        "runtime ", runtime.Name(), " needs ", name, ", which this node does not have in /usr/bin: ",
        python ? "install it, or name another version (python means python3)" : "apt-get install nodejs"));
  }
  if (!python && !runtime.version.empty()) {
    RK_ASSIGN_OR_RETURN(const std::string version, NodeVersion(interpreter));
    if (version != runtime.version) {
      return absl::UnimplementedError(absl::StrCat("runtime ", runtime.Name(), ": this node has Node.js ",
                                                   version, ": deploy it as nodejs", version,
                                                   ".x, or as nodejs for whichever there is"));
    }
  }
  auto program = FindRuntimeFile(python ? "python/bootstrap.py" : "node/bootstrap.js");
  if (!program.ok()) return program.status();
  return std::vector<std::string>{interpreter, *program};
}

absl::StatusOr<std::string> PythonVersion(const functions::Runtime& runtime) {
  if (runtime.kind != RuntimeKind::kPython) return "";
  RK_ASSIGN_OR_RETURN(const std::vector<std::string> command, RuntimeCommand(runtime, ""));
  char resolved[PATH_MAX];
  if (::realpath(command[0].c_str(), resolved) != nullptr) {
    const std::string path = resolved;
    absl::string_view version = absl::string_view(path).substr(path.rfind('/') + 1);
    if (absl::ConsumePrefix(&version, "python") && absl::StrContains(version, '.'))
      return std::string(version);
  }
  RK_ASSIGN_OR_RETURN(
      CommandResult asked,
      RunCommand({command[0], "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2], end='')"},
                 absl::Seconds(10)));
  if (!asked.exit.ok() || asked.output.empty())
    return absl::InternalError(absl::StrCat("asking ", command[0], " for its version: ", asked.output));
  return asked.output;
}

Environment BaseEnvironment() {
  Environment environment = {{"PATH", kPath},
                             {"LANG", "C.UTF-8"},
                             {"TZ", ":UTC"},
                             // Interpreters load code from there. In a folder that others may write to, it
                             // would be anybody's; this one nobody can make but root.
                             {"HOME", "/nonexistent"},
                             {"PYTHONNOUSERSITE", "1"},
                             // What it compiles would be compiled again in each copy of the code.
                             {"PYTHONDONTWRITEBYTECODE", "1"}};
  // Where the hook is built rather than installed.
  for (const auto& [variable, path] :
       {std::pair<const char*, std::string>{"REKINDLE_HOOK_LIBRARY", "/../hook/librekindle_hook.so"},
        {"REKINDLE_HOOK_ADDON", "/../hook/rekindle_hook.node"}}) {
    const std::string built = OwnFolder() + path;
    char resolved[PATH_MAX];
    if (const char* set = std::getenv(variable)) {
      environment[variable] = set;
    } else if (::realpath(built.c_str(), resolved) != nullptr) {
      environment[variable] = resolved;
    }
  }
  return environment;
}

Environment HeldEnvironment(const std::vector<std::string>& modules) {
  Environment environment = BaseEnvironment();
  environment["REKINDLE_HOLD"] = "1";
  environment["REKINDLE_DEPS"] = absl::StrJoin(modules, ",");
  for (const char* threads :
       {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"}) {
    environment[threads] = "1";
  }
  environment["UV_USE_IO_URING"] = "0";  // CRIU can't dump an io_uring
  return environment;
}

std::string RunAsText(const Owner& owner) {
  std::string text = absl::StrCat(owner.uid, ":", owner.gid);
  for (const gid_t group : owner.groups) absl::StrAppend(&text, ":", group);
  return text;
}

std::vector<std::string> LayersOf(const functions::FunctionRecord& record) {
  std::vector<std::string> layers;
  for (size_t i = 0; i < record.spec.LayerFolders().size(); ++i) layers.push_back(record.folder->layer(i));
  return layers;
}

std::optional<RunAs> UserOf(const Owner& owner) {
  if (owner.uid == ::geteuid()) return std::nullopt;
  return RunAs{owner.uid, owner.gid, owner.groups};
}

Environment InstanceEnvironment(const functions::FunctionRecord& record, const InstanceIdentity& identity) {
  const functions::FunctionSpec& spec = record.spec;
  const std::string code = record.folder->code();
  const std::vector<std::string> layers = LayersOf(record);
  Environment environment(spec.environment.begin(), spec.environment.end());
  const std::string memory = absl::StrCat(spec.memory_bytes >> 20);
  environment.insert({"AWS_REGION", "us-east-1"});
  environment.insert({"AWS_DEFAULT_REGION", "us-east-1"});
  environment["AWS_EXECUTION_ENV"] = absl::StrCat("AWS_Lambda_", spec.runtime.Name());
  environment["AWS_LAMBDA_FUNCTION_NAME"] = spec.name;
  environment["AWS_LAMBDA_FUNCTION_VERSION"] = "$LATEST";
  environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] = memory;
  environment["AWS_LAMBDA_INITIALIZATION_TYPE"] =
      spec.provisioned > 0 ? "provisioned-concurrency" : "on-demand";
  environment["AWS_LAMBDA_LOG_GROUP_NAME"] = absl::StrCat("/aws/lambda/", spec.name);
  environment["AWS_LAMBDA_LOG_STREAM_NAME"] = identity.instance;
  environment["_HANDLER"] = spec.handler;
  environment["LAMBDA_TASK_ROOT"] = code;
  environment["LAMBDA_RUNTIME_DIR"] = code;
  if (!layers.empty()) environment["REKINDLE_LAYERS"] = absl::StrJoin(layers, ":");
  if (!identity.socket.empty()) environment["REKINDLE_RUNTIME_SOCKET"] = identity.socket;
  if (!identity.runtime_api.empty()) environment["AWS_LAMBDA_RUNTIME_API"] = identity.runtime_api;
  if (!identity.log.empty()) environment["REKINDLE_OUTPUT"] = identity.log;
  return environment;
}

std::vector<std::string> AsStrings(const Environment& environment) {
  std::vector<std::string> strings;
  for (const auto& [name, value] : environment) strings.push_back(absl::StrCat(name, "=", value));
  return strings;
}

}  // namespace rekindle::daemon
