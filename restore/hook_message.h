// What the runtime hook in a job says on its control channel: JSON objects (docs/hook.md). The job's own code
// could say anything else there, so nothing is taken for granted of one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

}  // namespace rekindle::restore
