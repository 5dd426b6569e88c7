// A status in the JSON that our programs say to each other.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"

namespace rekindle {

// Adds to the object `json`: what it was made of (base/error_cause.h), "code", and its message under the key
// `message`.
void PutStatus(const absl::Status& status, nlohmann::json* json, const char* message = "error");

// Reads it back. What an error of an older program was made of, its message tells. Throws what `json` does
// where it makes no sense.
absl::Status StatusOf(const nlohmann::json& json, const char* message = "error");

}  // namespace rekindle
