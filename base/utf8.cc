#include "base/utf8.h"

#include <cstdint>

namespace rekindle {
namespace {

bool Continues(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

// The length of the character that `text` begins with; 0: it begins with none. Source: Unicode Standard,
// table 3-7.
size_t CharacterBytes(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                        : first >= 0xe0 && first <= 0xef ? 3
                        : first >= 0xf0 && first <= 0xf4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!Continues(text[i])) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return wrong ? 0 : length;
}

}  // namespace

std::string ToUtf8(absl::string_view bytes, size_t most) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = CharacterBytes(bytes);
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
