// Images that a store has for a while alone: one that is copied there from an object store builds upon them.
// They are nobody's newest image, whatever their labels say.
#pragma once

#include <string>
#include <string_view>

#include "rekindle/v1/image_layout.h"

namespace rekindle::v1 {

// The name of each is this and the beginning of its origin, so that it is of no job's name.
inline constexpr char kCopyLinkName[] = "copy-link/";
// The tag, before the same digits, that older versions gave them, under the job's name.
inline constexpr char kStrayCopyLinkTag[] = "link-";
inline constexpr size_t kCopyLinkDigits = 32;

// `labels`: a map, the image's.
template <typename Labels>
bool IsCopyLink(std::string_view reference, const Labels& labels) {
  constexpr std::string_view kHash = "sha256:";
  const auto origin = labels.find(kOriginLabel);
  if (origin == labels.end()) return false;
  std::string_view digits = origin->second;
  if (digits.starts_with(kHash)) digits.remove_prefix(kHash.size());
  digits = digits.substr(0, kCopyLinkDigits);
  if (digits.size() < kCopyLinkDigits) return false;
  return reference.starts_with(std::string(kCopyLinkName).append(digits).append(":")) ||
         reference.ends_with(std::string(":").append(kStrayCopyLinkTag).append(digits));
}

}  // namespace rekindle::v1
