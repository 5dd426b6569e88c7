#include "base/uuid.h"

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/random_bytes.h"

namespace rekindle {

std::string NewUuid() {
  std::array<unsigned char, 16> bytes;
  FillWithRandomBytes(bytes.data(), bytes.size());
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string hex = absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  absl::string_view text = hex;
  return absl::StrCat(text.substr(0, 8), "-", text.substr(8, 4), "-", text.substr(12, 4), "-",
                      text.substr(16, 4), "-", text.substr(20));
}

}  // namespace rekindle
