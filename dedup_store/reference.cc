#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/store.h"

namespace rekindle::store {

namespace {

constexpr size_t kMaxNameLength = 255;
constexpr size_t kMaxTagLength = 128;

bool IsNameCharacter(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("the name is empty");
  if (name.size() > kMaxNameLength)
    return absl::InvalidArgumentError("the name is longer than 255 characters");
  bool after_letter = false;
  for (char c : name) {
    if (IsNameCharacter(c)) {
      after_letter = true;
    } else if (c == '.' || c == '_' || c == '-' || c == '/') {
      if (!after_letter) {
        return absl::InvalidArgumentError(
            absl::StrCat("in the name each '", std::string(1, c), "' must stand between letters or digits"));
      }
      after_letter = false;
    } else {
      return absl::InvalidArgumentError(
          "a name consists of small letters and digits, joined by single '.', '_', '-' or '/'");
    }
  }
  if (!after_letter) return absl::InvalidArgumentError("the name must end with a letter or digit");
  return absl::OkStatus();
}

absl::Status CheckTag(absl::string_view tag) {
  if (tag.empty()) return absl::InvalidArgumentError("the tag after ':' is empty");
  if (tag.size() > kMaxTagLength) return absl::InvalidArgumentError("the tag is longer than 128 characters");
  if (tag[0] == '.' || tag[0] == '-') {
    return absl::InvalidArgumentError("a tag begins with a letter, a digit or '_'");
  }
  for (char c : tag) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '-') {
      return absl::InvalidArgumentError("a tag consists of letters, digits, '_', '.' and '-'");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> NormalizeReference(absl::string_view reference) {
  size_t colon = reference.find(':');
  absl::string_view name = reference.substr(0, colon);
  absl::string_view tag = colon == absl::string_view::npos ? "latest" : reference.substr(colon + 1);
  absl::Status status = CheckName(name);
  if (status.ok()) status = CheckTag(tag);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("'", reference,
                                                   "' is no image reference: ", status.message(),
                                                   ". Write it as name:tag, such as train/resnet:epoch-3"));
  }
  return absl::StrCat(name, ":", tag);
}

absl::Status CheckLabels(const std::map<std::string, std::string>& labels) {
  size_t bytes = 0;
  for (const auto& [key, value] : labels) bytes += key.size() + value.size();
  if (bytes <= kMostLabelBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the labels of an image may have ", kMostLabelBytes,
                                                 " bytes in all, and these have ", bytes,
                                                 ": keep long texts elsewhere"));
}

}  // namespace rekindle::store
