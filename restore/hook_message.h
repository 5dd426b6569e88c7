// What is said on the control channel of a job with the runtime hook: JSON objects (docs/hook.md). The job's
// own code could say anything else there, so nothing is taken for granted of one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::restore {

// An object; an empty one where `text` is none.
nlohmann::json ParseMessage(absl::string_view text);

// A field of an object; empty, false or `otherwise` where there is none, or it is of another kind.
std::string TextOf(const nlohmann::json& message, const char* field, absl::string_view otherwise = "");
bool FlagOf(const nlohmann::json& message, const char* field);
int64_t NumberOf(const nlohmann::json& message, const char* field, int64_t otherwise);
// Those that are texts.
std::vector<std::string> TextsOf(const nlohmann::json& message, const char* field);

// As it is sent to the hook. InvalidArgument: it is longer than the hook takes.
absl::StatusOr<std::string> MessageText(const nlohmann::json& message);

}  // namespace rekindle::restore
