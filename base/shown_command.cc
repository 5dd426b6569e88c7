#include "base/shown_command.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/process_stat.h"
#include "base/utf8.h"

namespace rekindle {

std::string ShownCommandOf(pid_t pid) {
  constexpr size_t kMostBytes = 60;
  std::string command = CommandLineOf(pid);
  std::replace_if(
      command.begin(), command.end(), [](unsigned char c) { return absl::ascii_isspace(c); }, ' ');
  absl::RemoveExtraAsciiWhitespace(&command);
  return absl::StrCat(ToUtf8(command, kMostBytes), command.size() > kMostBytes ? "…" : "");
}

}  // namespace rekindle
