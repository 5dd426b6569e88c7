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
// "the function did not load within 60 seconds"
std::string StartTimedOutText(absl::Duration longest);
// "Runtime exited with error: exit status 1". `memory_bytes`: its limit. Without InstanceEnd::why.
std::string ExitText(const InstanceEnd& end, uint64_t memory_bytes);

// errorType
inline constexpr char kExitType[] = "Runtime.ExitError";
inline constexpr char kTimedOutType[] = "Sandbox.Timedout";
const char* ExitType(const InstanceEnd& end);

// JSON: {"errorType", "errorMessage"}.
std::string TimedOutError(const std::string& request_id, absl::Duration timeout);
std::string StartTimedOutError(absl::Duration longest);
// With InstanceEnd::why. `request_id` empty: it ended before it asked for an invocation.
std::string ExitError(const std::string& request_id, const InstanceEnd& end, uint64_t memory_bytes);

}  // namespace rekindle::functions
