#include "base/kept_logs.h"

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"

namespace rekindle {

std::string PlaceForLogs(const std::string& directory, absl::string_view prefix, absl::string_view work) {
  auto names = ListDirectory(directory);
  std::vector<std::string> logs;
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    if (absl::StartsWith(name, prefix)) logs.push_back(name);
  }
  // The names begin with the time, so the oldest come first.
  for (size_t i = 0; i + kMostKeptLogs <= logs.size(); ++i) {
    RemoveTree(absl::StrCat(directory, "/", logs[i])).IgnoreError();
  }
  return absl::StrCat(directory, "/", prefix, absl::ToUnixSeconds(absl::Now()), "-",
                      work.substr(work.rfind('-') + 1));
}

}  // namespace rekindle
