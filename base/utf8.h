// What people and protocols are shown of names that may be any bytes: command lines, paths.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rekindle {

// `bytes` as UTF-8, at most so many bytes of it, with a "?" for each byte that is no part of a character; no
// character is cut in two. Thread-safe.
std::string ToUtf8(absl::string_view bytes, size_t most = absl::string_view::npos);

}  // namespace rekindle
