// CLI11, for all programs. Its own whole numbers are as C writes them, where "010" means eight and "0x10"
// sixteen: what people and scripts pad with zeros would be another number. Ours are decimal, whether they
// come from the command line, a configuration file or the environment. Nothing else includes <CLI/CLI.hpp>
// (scripts/lint.sh).
#pragma once

#include <CLI/TypeTools.hpp>
#include <charconv>
#include <string>
#include <system_error>

#include "absl/strings/string_view.h"

namespace rekindle {

// "10", "010" and "+10" are ten; "-1" is none where `Number` has no sign.
template <typename Number>
bool ReadDecimal(absl::string_view text, Number* number) noexcept {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const char* end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

}  // namespace rekindle

// Before anything uses the general one.
namespace CLI::detail {
#define RK_DECIMAL(Number)                                                                    \
  template <>                                                                                 \
  inline bool integral_conversion<Number>(const std::string& text, Number& number) noexcept { \
    return ::rekindle::ReadDecimal(text, &number);                                            \
  }
RK_DECIMAL(signed char)
RK_DECIMAL(unsigned char)
RK_DECIMAL(short)
RK_DECIMAL(unsigned short)
RK_DECIMAL(int)
RK_DECIMAL(unsigned)
RK_DECIMAL(long)
RK_DECIMAL(unsigned long)
RK_DECIMAL(long long)
RK_DECIMAL(unsigned long long)
#undef RK_DECIMAL
}  // namespace CLI::detail

#include <CLI/CLI.hpp>  // IWYU pragma: export
