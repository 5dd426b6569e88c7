#include "functions/scheduler_errors.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rekindle::functions {
namespace {

std::string Error(const char* type, const std::string& message) {
  return nlohmann::json({{"errorType", type}, {"errorMessage", message}}).dump();
}

std::string About(const std::string& request_id) {
  return request_id.empty() ? "" : absl::StrCat("RequestId: ", request_id, " Error: ");
}

}  // namespace

absl::Status NobodyWaits() {
  return absl::CancelledError("nobody waited for it any more when an instance became free");
}

std::string TimedOutText(absl::Duration timeout) {
  return absl::StrFormat("Task timed out after %.2f seconds", absl::ToDoubleSeconds(timeout));
}

std::string ExitText(const InstanceEnd& end) {
  if (end.exit.signal != 0) {
    return absl::StrCat("Runtime exited with error: signal: ",
                        absl::AsciiStrToLower(::strsignal(end.exit.signal)));
  }
  if (end.exit.code == 0) return "Runtime exited without providing a reason";
  return absl::StrCat("Runtime exited with error: exit status ", end.exit.code);
}

std::string TimedOutError(const std::string& request_id, absl::Duration timeout) {
  return Error("Sandbox.Timedout", About(request_id) + TimedOutText(timeout));
}

std::string StartTimedOutError(absl::Duration longest) {
  return Error("Sandbox.Timedout", absl::StrFormat("Error: the function did not load within %.0f seconds",
                                                   absl::ToDoubleSeconds(longest)));
}

std::string ExitError(const std::string& request_id, const InstanceEnd& end, uint64_t memory_bytes) {
  if (end.out_of_memory) {
    return Error("Runtime.OutOfMemory", absl::StrCat(About(request_id), ExitText(end), " (memory limit of ",
                                                     memory_bytes >> 20, " MB reached)"));
  }
  return Error("Runtime.ExitError", About(request_id) + ExitText(end));
}

}  // namespace rekindle::functions
