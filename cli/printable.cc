#include "cli/printable.h"

#include "base/utf8.h"

namespace rekindle::cli {
namespace {

bool IsBetween(absl::string_view character, absl::string_view first, absl::string_view last) {
  return character.size() == first.size() && character >= first && character <= last;
}

// Turns the direction of what follows, breaks the line, or is not seen: what stands there would not be what
// is read. Source: Unicode, Bidi_Control, and Default_Ignorable_Code_Point of the general punctuation;
// joiners (U+200C, U+200D) are parts of words.
bool ShowsOtherText(absl::string_view character) {
  return character == "\u061c" || character == "\u200b" || IsBetween(character, "\u200e", "\u200f") ||
         IsBetween(character, "\u2028", "\u202e") || IsBetween(character, "\u2060", "\u206f") ||
         character == "\ufeff" || IsBetween(character, "\U000e0000", "\U000e007f");
}

}  // namespace

std::string Printable(absl::string_view text) {
  return ReplaceInText(text, [](absl::string_view bytes, bool whole, std::string* printable) {
    const bool stays =
        bytes == "\n" || bytes == "\t" || (whole && !IsControlCharacter(bytes) && !ShowsOtherText(bytes));
    printable->append(stays ? bytes.data() : "?", stays ? bytes.size() : 1);
  });
}

}  // namespace rekindle::cli
