// How callers of Lambda's API name a function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

struct FunctionName {
  std::string name;
  std::string qualifier;  // a version or alias; empty: none was named
};

// NAME, ACCOUNT:function:NAME or arn:aws:lambda:REGION:ACCOUNT:function:NAME, each with :QUALIFIER or
// without. InvalidArgument with Lambda's text for any other.
absl::StatusOr<FunctionName> ParseFunctionName(absl::string_view text);

}  // namespace rekindle::functions
