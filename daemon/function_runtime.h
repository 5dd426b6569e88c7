// How the processes of functions are started: programs of the languages, and their environment
// (docs/functions.md has the variables).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/job_launcher.h"
#include "functions/function_catalog.h"
#include "functions/function_spec.h"
#include "restore/own_temporary.h"

namespace rekindle::daemon {

struct NodeOptions;  // node.h

using Environment = std::map<std::string, std::string>;

// The command that loads a function's handler and serves it. Unimplemented: this node has no such
// interpreter; says how to get it.
absl::StatusOr<std::vector<std::string>> RuntimeCommand(const functions::Runtime& runtime,
                                                        const std::string& code);

// The version that a runtime for Python has on this node, "3.11". Empty: it is not Python. Unimplemented: as
// RuntimeCommand.
absl::StatusOr<std::string> PythonVersion(const functions::Runtime& runtime);

// Rekindle's own programs in the functions' languages, such as "python/discover_imports.py".
absl::StatusOr<std::string> FindRuntimeFile(const std::string& name);

// The folders of Rekindle's own that a process of a function needs something of: the installation, or the
// build folder, and the runtimes.
std::vector<std::string> OwnFolders();

// A /tmp and a /dev/shm of its own for what loads a function, or modules for functions: what others have put
// into the machine's is not seen there, and nothing is left in that. `bytes`: that each may have, in memory.
restore::OwnTemporary TemporaryOn(const NodeOptions& node, uint64_t bytes);
// The folders that stay the machine's there: what processes of functions need something of, should it lie in
// the machine's /tmp.
std::vector<std::string> KeptFolders(const NodeOptions& node);

// What every process of a function begins with, before anything of a function is known.
Environment BaseEnvironment();
// The same for one that is to be held: libraries that start threads could not be forked.
Environment HeldEnvironment(const std::vector<std::string>& modules);

// Where there are no control groups, a variable by which all that a process has started is found.
inline constexpr char kInstanceMark[] = "REKINDLE_INSTANCE";

struct InstanceIdentity {
  std::string instance, log, socket;
  std::string runtime_api;  // HOST:PORT, in place of the socket
};
// Of one instance: the function's own, and what Lambda and Rekindle say to it.
Environment InstanceEnvironment(const functions::FunctionRecord& record, const InstanceIdentity& identity);

// Folders of its layers' copies.
std::vector<std::string> LayersOf(const functions::FunctionRecord& record);

// What REKINDLE_RUN_AS says to a copy that is to become this user.
std::string RunAsText(const Owner& owner);
// As whom its processes run; nothing: as the daemon.
std::optional<RunAs> UserOf(const Owner& owner);

std::vector<std::string> AsStrings(const Environment& environment);

}  // namespace rekindle::daemon
