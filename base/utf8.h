// What people and protocols are shown of names that may be any bytes: command lines, paths.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// `bytes` as UTF-8, at most so many bytes of it, with a "?" for each byte that is no part of a character; no
// character is cut in two. Thread-safe.
std::string ToUtf8(absl::string_view bytes, size_t most = absl::string_view::npos);

// A character as far as it is one: so many bytes may begin it, and are all of it.
struct Utf8Character {
  size_t bytes = 0;
  bool whole = false;
};

// The one that `text` begins with, which is not empty. In its shortest form, no surrogate, at most U+10FFFF.
// Source: Unicode Standard, table 3-7; RFC 3629. Thread-safe.
Utf8Character FirstUtf8Character(absl::string_view text);

// Is `character`, one whole character, one of the controls of ASCII or of ISO 6429 (U+0080 to U+009F)? They
// are orders to terminals. Thread-safe.
bool IsControlCharacter(absl::string_view character);

// `text`, in which printable ASCII stays as it is, and for everything else `replace` appends what shall stand
// for it: for one whole character, or for one byte that is no part of any. Thread-safe.
std::string ReplaceInText(absl::string_view text,
                          absl::FunctionRef<void(absl::string_view bytes, bool whole, std::string*)> replace);

}  // namespace rekindle
