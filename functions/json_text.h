// Whether a text is JSON.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

// InvalidArgument with what is wrong and where.
absl::Status CheckJson(absl::string_view text);

}  // namespace rekindle::functions
