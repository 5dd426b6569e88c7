#include "base/human_units.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace rekindle {

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < sizeof kUnits / sizeof kUnits[0]) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 0) return absl::StrCat("-", FormatSeconds(-seconds));
  if (seconds < 0.001) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.2f s", seconds);
  int64_t whole = std::llround(seconds);
  if (whole < 3600) return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %d min", whole / 3600, whole % 3600 / 60);
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  size_t digits = number.find_first_not_of("0123456789.");
  std::string unit = digits == absl::string_view::npos
                         ? std::string()
                         : absl::AsciiStrToUpper(absl::StripAsciiWhitespace(number.substr(digits)));
  number = number.substr(0, digits);
  double value = 0;
  auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a size: write a number and K, M, G or T, such as 512M"));
  };
  if (number.empty() || !absl::SimpleAtod(number, &value)) return bad();
  absl::string_view letter = unit;
  if (!absl::ConsumeSuffix(&letter, "IB")) absl::ConsumeSuffix(&letter, "B");
  static constexpr absl::string_view kLetters = "KMGTP";
  double factor = 1;
  if (!letter.empty()) {
    size_t power = letter.size() == 1 ? kLetters.find(letter[0]) : absl::string_view::npos;
    if (power == absl::string_view::npos) return bad();
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  }
  double bytes = value * factor;
  if (bytes >= 18446744073709551615.0) return bad();
  return static_cast<uint64_t>(bytes);
}

}  // namespace rekindle
