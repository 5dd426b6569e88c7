#include "cli/printable.h"

#include "base/utf8.h"

namespace rekindle::cli {

std::string Printable(absl::string_view text) {
  return ReplaceInText(text, [](absl::string_view bytes, bool whole, std::string* printable) {
    const bool stays = bytes == "\n" || bytes == "\t" || (whole && !IsControlCharacter(bytes));
    printable->append(stays ? bytes.data() : "?", stays ? bytes.size() : 1);
  });
}

}  // namespace rekindle::cli
