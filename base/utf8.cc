#include "base/utf8.h"

#include <cstdint>

namespace rekindle {
namespace {

// So many bytes at the beginning stay as they are, at a glance: most text is ASCII.
size_t PrintableAsciiBytes(absl::string_view text) {
  size_t at = 0;
  while (at < text.size() && text[at] >= 0x20 && text[at] < 0x7f) ++at;
  return at;
}

}  // namespace

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

std::string ReplaceInText(
    absl::string_view text,
    absl::FunctionRef<void(absl::string_view bytes, bool whole, std::string*)> replace) {
  std::string replaced;
  replaced.reserve(text.size());
  for (;;) {
    const size_t plain = PrintableAsciiBytes(text);
    replaced.append(text.data(), plain);
    text.remove_prefix(plain);
    if (text.empty()) return replaced;
    const Utf8Character next = FirstUtf8Character(text);
    const size_t length = next.whole ? next.bytes : 1;
    replace(text.substr(0, length), next.whole, &replaced);
    text.remove_prefix(length);
  }
}

}  // namespace rekindle
