#include "functions/function_name.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rekindle::functions {
namespace {

constexpr size_t kLongestName = 64;
constexpr size_t kLongestText = 170;
constexpr absl::string_view kPattern =
    R"((arn:(aws[a-zA-Z-]*)?:lambda:)?([a-z]{2}(-gov)?-[a-z]+-\d{1}:)?(\d{12}:)?(function:)?([a-zA-Z0-9-_]+))"
    R"((:(\$LATEST|[a-zA-Z0-9-_]+))?)";

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  });
}

bool IsAccount(absl::string_view text) {
  return text.size() == 12 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

absl::Status Malformed(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("1 validation error detected: Value '", text.substr(0, kLongestText),
                   "' at 'functionName' failed to satisfy constraint: Member must "
                   "satisfy regular expression pattern: ",
                   kPattern));
}

}  // namespace

absl::StatusOr<FunctionName> ParseFunctionName(absl::string_view text) {
  std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  auto begin = parts.begin();
  // arn:aws:lambda:REGION
  if (parts.size() >= 7 && begin[0] == "arn" && absl::StartsWith(begin[1], "aws") && begin[2] == "lambda")
    begin += 4;
  bool after_arn = begin != parts.begin();
  if (parts.end() - begin >= 3 && IsAccount(begin[0]) && begin[1] == "function") {
    begin += 2;
  } else if (after_arn) {
    return Malformed(text);
  }
  size_t left = static_cast<size_t>(parts.end() - begin);
  if (left < 1 || left > 2 || !IsName(begin[0])) return Malformed(text);
  if (left == 2 && begin[1] != "$LATEST" && !IsName(begin[1])) return Malformed(text);
  return FunctionName{std::string(begin[0]), left == 2 ? std::string(begin[1]) : ""};
}

}  // namespace rekindle::functions
