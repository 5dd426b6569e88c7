// Whether a text is JSON.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

// So many arrays and objects may be within each other. No runtime reads as many; it is there so that it can
// be told what is checked.
inline constexpr size_t kDeepestJson = size_t{1} << 20;

// By RFC 8259 to the letter, and in UTF-8, with no half of a surrogate pair escaped alone, which no UTF-8 can
// be made of. Numbers may be of any size. InvalidArgument with what is wrong and where.
absl::Status CheckJson(absl::string_view text);

}  // namespace rekindle::functions
