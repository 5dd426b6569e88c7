#include "base/utf8.h"

#include <cstdint>

namespace rekindle {
Utf8Character FirstUtf8Character(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return {1, true};
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0) return {0, false};
  for (size_t i = 1; i < length; ++i) {
    uint8_t least = 0x80, most = 0xbf;
    if (i == 1 && first == 0xe0) least = 0xa0;
    if (i == 1 && first == 0xed) most = 0x9f;
    if (i == 1 && first == 0xf0) least = 0x90;
    if (i == 1 && first == 0xf4) most = 0x8f;
    if (i == text.size()) return {i, false};
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < least || byte > most) return {i, false};
  }
  return {length, true};
}

bool IsControlCharacter(absl::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;
}

std::string ToUtf8(absl::string_view bytes, size_t most) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Character character = FirstUtf8Character(bytes);
    const size_t length = character.whole ? character.bytes : 0;
    const size_t taken = length == 0 ? 1 : length;
    if (taken > most - text.size()) break;
    if (length == 0) {
      text += '?';
    } else {
      text.append(bytes.data(), length);
    }
    bytes.remove_prefix(taken);
  }
  return text;
}

}  // namespace rekindle
