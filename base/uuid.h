// Names that nobody else has.
#pragma once

#include <string>

namespace rekindle {

// A random UUID's text (version 4). Thread-safe.
std::string NewUuid();

}  // namespace rekindle
