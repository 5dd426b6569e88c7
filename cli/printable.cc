#include "cli/printable.h"

#include <cstddef>

#include "base/utf8.h"

namespace rekindle::cli {
namespace {

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
    if (!next.whole || IsControlCharacter(character)) {
      printable += '?';
    } else {
      printable.append(character.data(), length);
    }
    text.remove_prefix(length);
  }
}

}  // namespace rekindle::cli
