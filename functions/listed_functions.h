// Functions as ListFunctions and GetFunction of AWS Lambda's API show them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "functions/invoke_api.h"

namespace rekindle::functions {

// A page of the list: up to `most` functions after the one named `after` (empty: from the first). `functions`
// are in the order of their names.
std::string FunctionsPage(const std::vector<ListedFunction>& functions, absl::string_view arn_prefix,
                          absl::string_view after, size_t most);
// GetFunctionConfiguration's answer; GetFunction's is {"Configuration": that, …}.
std::string FunctionConfiguration(const ListedFunction& function, absl::string_view arn_prefix);

}  // namespace rekindle::functions
