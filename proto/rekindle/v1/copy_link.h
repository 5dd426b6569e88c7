// Images that a store has for a while alone: one that is copied there builds upon them. They are what it
// builds upon in an object store, or parts of it. They are nobody's newest image, whatever their labels say.
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
// The digits of a part's origin begin with those of the image that it is a part of; then come some that tell
// since which base, and how far it goes.
inline constexpr size_t kPartImageDigits = 12, kPartBaseDigits = 8,
                        kPartPagesDigits = kCopyLinkDigits - kPartImageDigits - kPartBaseDigits;

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
