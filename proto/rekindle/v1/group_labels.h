// What labels say of groups: docs/groups.md.
#pragma once

#include <string>

#include "rekindle/v1/image_layout.h"

namespace rekindle::v1 {

// The group that can't be restored without this image; empty: there is none. A copy is none of its members'.
// `labels`: a map, the image's.
template <typename Labels>
std::string GroupOf(const Labels& labels) {
  const auto group = labels.find(kGroupLabel);
  if (group == labels.end() || labels.find(kGroupIdLabel) == labels.end()) return "";
  return labels.find(kOriginLabel) == labels.end() ? group->second : "";
}

}  // namespace rekindle::v1
