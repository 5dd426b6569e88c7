#include "cli/printable.h"

#include <cstddef>
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

// So many bytes at the beginning are shown as they are, at a glance: most text is ASCII.
size_t PlainBytes(absl::string_view text) {
  size_t at = 0;
  while (at < text.size() &&
         ((text[at] >= 0x20 && text[at] < 0x7f) || text[at] == '\n' || text[at] == '\t')) {
    ++at;
  }
  return at;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  for (;;) {
    const size_t plain = PlainBytes(text);
    printable.append(text.data(), plain);
    text.remove_prefix(plain);
    if (text.empty()) return printable;
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
}

}  // namespace rekindle::cli
