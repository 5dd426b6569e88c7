#include "cli/number_checks.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rekindle::cli {

CLI::Validator AboveZero() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double number = 0;
        if (absl::SimpleAtod(text, &number) && std::isfinite(number) && number > 0) return "";
        return absl::StrCat("'", text, "' is no number above 0");
      },
      "NUMBER");
}

CLI::Validator WholeAboveZero() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t number = 0;
        if (absl::SimpleAtoi(text, &number) && number > 0) return "";
        return absl::StrCat("'", text, "' is no whole number from 1 to ", UINT64_MAX);
      },
      "NUMBER");
}

}  // namespace rekindle::cli
