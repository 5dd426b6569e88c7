#include "functions/request_id.h"

#include <sys/random.h>

#include <array>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

std::string NewRequestId() {
  std::array<unsigned char, 16> bytes;
  // So few bytes come at once, and after the start of the machine always.
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string hex = absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  absl::string_view text = hex;
  return absl::StrCat(text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

}  // namespace rekindle::functions
