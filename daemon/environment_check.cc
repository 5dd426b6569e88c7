#include "daemon/environment_check.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/human_units.h"
#include "base/log.h"

namespace rekindle::daemon {
namespace {

bool IsSeconds(absl::string_view text) {
  double seconds = 0;
  return absl::SimpleAtod(text, &seconds) && seconds >= 0;
}
bool IsSize(absl::string_view text) { return ParseBytes(text).ok(); }
bool IsWholeNumber(absl::string_view text) {
  uint32_t number = 0;
  return absl::SimpleAtoi(text, &number);
}
bool IsFolder(const char* path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}
bool IsSwitch(absl::string_view text) { return text == "0" || text == "1"; }

constexpr char kSeconds[] = "a number of seconds from 0 on, such as 30";

constexpr struct {
  const char* name;
  bool (*takes)(absl::string_view text);
  const char* what;
} kVariables[] = {
    {"REKINDLE_STREAM_TIMEOUT", IsSeconds, "a number of seconds, such as 600, or 0 for ever"},
    {"REKINDLE_COPY_PART", IsWholeNumber, "a whole number of MiB, such as 128"},
    {"REKINDLE_GPU_ROOM_TIMEOUT", IsSeconds, kSeconds},
    {"REKINDLE_GPU_MOVE_TIMEOUT", IsSeconds, kSeconds},
    {"REKINDLE_GPU_CONTEXT_MEMORY", IsSize, "a size, such as 256M"},
    {"REKINDLE_GPU_HUGE_PAGES", IsSwitch, "0 or 1"},
    {"REKINDLE_GPU_HOLD_THREADS", IsSwitch, "0 or 1"},
    {"REKINDLE_PAGE_CACHE", IsSize, "a size, such as 1G"},
};

}  // namespace

std::string TroubleInEnvironment() {
  for (const auto& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    if (value == nullptr || *value == '\0' || variable.takes(value)) continue;
    return absl::StrCat("$", variable.name, " is '", value, "', and takes ", variable.what,
                        ": change it, or unset it; until then its default holds");
  }
  return "";
}

void WarnOfDaemonEnvironment() {
  if (const std::string trouble = TroubleInEnvironment(); !trouble.empty()) Log(LogLevel::kWarning, trouble);
  const char* runtimes = std::getenv("REKINDLE_RUNTIMES");
  if (runtimes == nullptr || *runtimes == '\0' || IsFolder(runtimes)) return;
  Log(LogLevel::kWarning,
      absl::StrCat(
          "$REKINDLE_RUNTIMES is '", runtimes,
          "', which is no folder: until it is one, functions have the runtimes that were installed"));
}

}  // namespace rekindle::daemon
