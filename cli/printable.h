// Text from elsewhere on its way to a terminal, which takes some characters as orders.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rekindle::cli {

// Its control characters become '?', those that ISO 6429 has beyond ASCII too, those by which
// a line is read as another than it is (that turn its direction, or are not seen), and what is no UTF-8; line
// breaks and tabs stay.
std::string Printable(absl::string_view text);

}  // namespace rekindle::cli
