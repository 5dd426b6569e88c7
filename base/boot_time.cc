#include "base/boot_time.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"

namespace rekindle {

int64_t BoottimeOffsetNanos() {
  static const int64_t offset = [] {
    int64_t nanos = 0;
    const std::string offsets = ReadFile("/proc/self/timens_offsets").value_or("");
    for (const absl::string_view line : absl::StrSplit(offsets, '\n')) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
      int64_t seconds = 0, rest = 0;
      if (words.size() == 3 && words[0] == "boottime" && absl::SimpleAtoi(words[1], &seconds) &&
          absl::SimpleAtoi(words[2], &rest))
        nanos = seconds * 1'000'000'000 + rest;
    }
    return nanos;
  }();
  return offset;
}

}  // namespace rekindle
