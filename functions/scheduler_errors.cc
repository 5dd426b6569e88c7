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

std::string StartTimedOutText(absl::Duration longest) {
  return absl::StrFormat("the function did not load within %.0f seconds (fn deploy --start-timeout)",
                         absl::ToDoubleSeconds(longest));
}

std::string ExitText(const InstanceEnd& end, uint64_t memory_bytes) {
  if (end.out_of_memory) {
    return absl::StrCat(ExitText({end.exit, false, ""}, 0), " (memory limit of ", memory_bytes >> 20,
                        " MB reached)");
  }
  if (end.exit.signal != 0) {
    return absl::StrCat("Runtime exited with error: signal: ",
                        absl::AsciiStrToLower(::strsignal(end.exit.signal)));
  }
  if (end.exit.code == 0) return "Runtime exited without providing a reason";
  return absl::StrCat("Runtime exited with error: exit status ", end.exit.code);
}

const char* ExitType(const InstanceEnd& end) { return end.out_of_memory ? "Runtime.OutOfMemory" : kExitType; }

std::string TimedOutError(const std::string& request_id, absl::Duration timeout) {
  return Error(kTimedOutType, About(request_id) + TimedOutText(timeout));
}

std::string StartTimedOutError(absl::Duration longest) {
  return Error(kTimedOutType, absl::StrCat("Error: ", StartTimedOutText(longest)));
}

std::string ExitError(const std::string& request_id, const InstanceEnd& end, uint64_t memory_bytes) {
  const std::string text = About(request_id) + ExitText(end, memory_bytes);
  return Error(ExitType(end), end.why.empty() ? text : absl::StrCat(text, ": Rekindle ended it: ", end.why));
}

}  // namespace rekindle::functions
