#include "cli/durations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle::cli {

absl::StatusOr<int64_t> ParseAge(const std::string& text) {
  constexpr std::pair<char, int64_t> kUnits[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}, {'w', 7 * 24 * 3600}};
  constexpr int64_t kLongestSeconds = int64_t{200} * 365 * 24 * 3600;
  int64_t number = 0;
  for (const auto& [letter, seconds] : kUnits) {
    if (text.empty() || text.back() != letter) continue;
    if (text.find_first_not_of("0123456789") != text.size() - 1 ||
        !absl::SimpleAtoi(text.substr(0, text.size() - 1), &number) || number == 0 ||
        number > kLongestSeconds / seconds) {
      break;
    }
    return number * seconds * 1'000'000'000;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no age: write a number and s, m, h, d or w, such as 7d"));
}

absl::StatusOr<uint64_t> ParseMilliseconds(const std::string& text) {
  constexpr std::pair<absl::string_view, uint64_t> kUnits[] = {
      {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  constexpr uint64_t kMost = uint64_t{1} << 40;
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  uint64_t number = 0;
  for (const auto& [unit, ms] : kUnits) {
    if (text.substr(digits) != unit) continue;
    if (digits == 0) break;
    if (!absl::SimpleAtoi(text.substr(0, digits), &number) || number == 0 || number > kMost / ms) {
      return absl::OutOfRangeError(
          absl::StrCat("'", text, "' is out of range: write 1ms to ", kMost / 3'600'000, "h"));
    }
    return number * ms;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no duration: write a number and ms, s, m or h, such as 30s"));
}

}  // namespace rekindle::cli
