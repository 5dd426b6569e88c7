#include "cli/printable.h"

#include <cstdint>

#include "base/utf8.h"

namespace rekindle::cli {
namespace {

// `character`: one, in UTF-8.
bool IsControl(absl::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f;
  return first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;  // U+0080 to U+009F
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character next = FirstUtf8Character(text);
    const size_t length = next.whole ? next.bytes : 1;
    const absl::string_view character = text.substr(0, length);
    if (!next.whole || IsControl(character)) {
      printable += '?';
    } else {
      printable.append(character.data(), length);
    }
    text.remove_prefix(length);
  }
  return printable;
}

}  // namespace rekindle::cli
