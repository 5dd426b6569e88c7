#include "functions/listed_functions.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {
namespace {

using Json = nlohmann::ordered_json;

Json Configuration(const ListedFunction& function, absl::string_view arn_prefix) {
  return {
      {"FunctionName", function.name},
      {"FunctionArn", absl::StrCat(arn_prefix, function.name)},
      {"Runtime", function.runtime},
      {"Handler", function.handler},
      {"Description", function.description},
      {"CodeSize", function.code_size},
      {"MemorySize", function.memory_mib},
      {"Timeout", absl::ToInt64Seconds(function.timeout)},
      {"LastModified",
       absl::FormatTime("%Y-%m-%dT%H:%M:%E3S+0000", function.last_modified, absl::UTCTimeZone())},
      {"Version", "$LATEST"},
      {"PackageType", "Zip"},
      {"State", "Active"},
      {"LastUpdateStatus", "Successful"},
  };
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string FunctionsPage(const std::vector<ListedFunction>& functions, absl::string_view arn_prefix,
                          absl::string_view after, size_t most) {
  Json page = {{"Functions", Json::array()}, {"NextMarker", nullptr}};
  Json& shown = page["Functions"];
  for (const ListedFunction& function : functions) {
    if (!after.empty() && function.name <= after) continue;
    if (shown.size() == most) {
      page["NextMarker"] = shown.back()["FunctionName"];
      break;
    }
    shown.push_back(Configuration(function, arn_prefix));
  }
  return Dump(page);
}

std::string FunctionConfiguration(const ListedFunction& function, absl::string_view arn_prefix) {
  return Dump(Configuration(function, arn_prefix));
}

}  // namespace rekindle::functions
