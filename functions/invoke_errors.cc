#include "functions/invoke_errors.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {

HttpAnswer InvokeError(int status, absl::string_view type, absl::string_view message) {
  nlohmann::ordered_json error = {{"Type", status >= 500 ? "Service" : "User"},
                                  {"Message", std::string(message)}};
  if (status == 429) error["Reason"] = "ConcurrentInvocationLimitExceeded";
  HttpAnswer answer(status, error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  answer.Add("x-amzn-ErrorType", type);
  return answer;
}

HttpAnswer InvokeErrorFrom(const absl::Status& status, absl::string_view function_arn) {
  absl::string_view message = status.message();
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return FunctionNotFound(function_arn);
    case absl::StatusCode::kInvalidArgument:
      return InvokeError(400, "InvalidParameterValueException", message);
    case absl::StatusCode::kResourceExhausted:
      return InvokeError(429, "TooManyRequestsException", message);
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return InvokeError(403, "AccessDeniedException", message);
    case absl::StatusCode::kFailedPrecondition:
      return InvokeError(409, "ResourceConflictException", message);
    default:
      return InvokeError(500, "ServiceException", message);
  }
}

HttpAnswer FunctionNotFound(absl::string_view function_arn) {
  return InvokeError(404, "ResourceNotFoundException", absl::StrCat("Function not found: ", function_arn));
}

}  // namespace rekindle::functions
