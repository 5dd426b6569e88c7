// Why a program could not be executed, and what to do about it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/job_launcher.h"

namespace rekindle::daemon {

// Of the job of `options`: `path` is what was executed, as seen from the job's folder, and `error` is
// execve's.
absl::Status WhyNotExecuted(int error, const std::string& path, const LaunchOptions& options);

// The same of its working directory, and chdir's error.
absl::Status WhyNotEntered(int error, const LaunchOptions& options);

}  // namespace rekindle::daemon
