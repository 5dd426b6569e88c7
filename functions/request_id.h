// Names of requests.
#pragma once

#include <string>

namespace rekindle::functions {

// A random UUID's text (version 4). Thread-safe.
std::string NewRequestId();

}  // namespace rekindle::functions
