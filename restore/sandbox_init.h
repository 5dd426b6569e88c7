// The first process of a sandbox: sets up its mounts, starts CRIU, reaps, and ends everything when the job's
// root ends or when nobody serves the job's missing memory any more. Private to the program rekindle-sandbox.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace rekindle::restore {

struct InitSetup {
  UniqueFd control, keeper;
  std::string directory;  // the sandbox's own, as seen from outside
  bool loopback = false;
};

// Never returns. The calling process is PID 1 of new namespaces and has one thread.
[[noreturn]] void RunSandboxInit(InitSetup setup);

}  // namespace rekindle::restore
