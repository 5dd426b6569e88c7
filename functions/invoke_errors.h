// Errors as AWS Lambda's API has them: a status, the header x-amzn-ErrorType, and JSON with Type and Message.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "functions/http_message.h"

namespace rekindle::functions {

HttpAnswer InvokeError(int status, absl::string_view type, absl::string_view message);
// The invoker's error. `function_arn` is that of the function that was asked for.
HttpAnswer InvokeErrorFrom(const absl::Status& status, absl::string_view function_arn);
HttpAnswer FunctionNotFound(absl::string_view function_arn);

}  // namespace rekindle::functions
