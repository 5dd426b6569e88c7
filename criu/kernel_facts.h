// What CRIU finds out about the kernel by trying things, among others in /tmp. It keeps that in /run, only if
// that is a tmpfs, and only until a CRIU of another build does the same; so it is kept by us.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rekindle::criu {

// The file in `directory` with what the CRIU of this command has found out about the kernel that runs now,
// as /run/criu.kdat has it; made where it is not there yet, which takes as long as a small capture. Needs
// CAP_SYS_ADMIN. Starts a thread. Thread-safe.
absl::StatusOr<std::string> LearnKernel(const std::vector<std::string>& criu, const std::string& directory);

// Does a CRIU that is started here keep that itself? Thread-safe.
bool CriuKeepsKernelFacts();

}  // namespace rekindle::criu
