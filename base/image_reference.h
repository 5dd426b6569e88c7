// The parts of what names an image, "name:tag".
#pragma once

#include "absl/strings/string_view.h"

namespace rekindle {

// The name of "name:tag": part of `reference`. The images of one owner with one name are a group.
inline absl::string_view NameOfReference(absl::string_view reference) {
  return reference.substr(0, reference.rfind(':'));
}

}  // namespace rekindle
