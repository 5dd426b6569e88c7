// What a caller is told when an instance could not answer, in the words of AWS Lambda.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "functions/instance_process.h"

namespace rekindle::functions {

// To a caller that has gone.
absl::Status NobodyWaits();

// "Task timed out after 3.00 seconds"
std::string TimedOutText(absl::Duration timeout);
// "Runtime exited with error: exit status 1"
std::string ExitText(const InstanceEnd& end);

// JSON: {"errorType", "errorMessage"}.
std::string TimedOutError(const std::string& request_id, absl::Duration timeout);
std::string StartTimedOutError(absl::Duration longest);
// `request_id` empty: it ended before it asked for an invocation. `memory_bytes`: its limit.
std::string ExitError(const std::string& request_id, const InstanceEnd& end, uint64_t memory_bytes);

}  // namespace rekindle::functions
