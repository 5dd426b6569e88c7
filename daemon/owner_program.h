// Programs that the daemon runs as a function's owner, to look at his code or to prepare it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "daemon/cancellation.h"
#include "daemon/function_runtime.h"
#include "daemon/node.h"
#include "restore/cgroup.h"
#include "restore/own_temporary.h"
#include "restore/sandbox.h"

namespace rekindle::daemon {

struct OwnerProgram {
  std::string name;  // of what is done, for records and marks: "discovery"
  std::vector<std::string> command;
  Environment environment;
  std::string working_directory;
  Owner owner;
  restore::OwnTemporary temporary;  // what /tmp it sees, and what it can't change
  restore::Network network = restore::Network::kHost;
  restore::CgroupLimits limits;  // where there can be any
  absl::Duration longest;        // then it is killed
  uint64_t most_output = 0;      // the last bytes are kept
  std::string results;           // a folder that it makes in its own /tmp; empty: none
};

struct OwnerProgramEnd {
  std::string output;
  bool late = false;              // it was killed at its time limit
  bool out_of_memory = false;     // the kernel has killed some of it at its memory limit
  std::optional<ExitState> exit;  // nothing: it is not known
  UniqueFd results;               // not valid: it has made none. What lies in it may be anything
};

// With all that it has started, which ends with it. Blocks. Cancelled: by `cancel` (may be null), or since
// the daemon is ending, which the message says.
absl::StatusOr<OwnerProgramEnd> RunOwnerProgram(Node& node, const OwnerProgram& program,
                                                const Cancellation* cancel);

}  // namespace rekindle::daemon
