#include "functions/json_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {
namespace {

// Keeps nothing of the text but what is wrong with it.
class Checker final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // A number beyond a double's range is JSON all the same; it is for the function to judge it, and what
    // follows it.
    if (error.id != kNumberOutOfRange) error_ = error.what();
    return false;
  }

  const std::string& error() const { return error_; }

 private:
  static constexpr int kNumberOutOfRange = 406;
  std::string error_;
};

}  // namespace

absl::Status CheckJson(absl::string_view text) {
  // No JSON has one, and the parser takes it for the end.
  if (size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("parse error at byte ", zero + 1, ": a zero byte"));
  }
  Checker checker;
  nlohmann::json::sax_parse(text.begin(), text.end(), &checker);
  if (checker.error().empty()) return absl::OkStatus();
  // "[json.exception.parse_error.101] parse error at line 1, column 2: …"
  absl::string_view error = checker.error();
  size_t end = error.find("] ");
  if (end != absl::string_view::npos) error.remove_prefix(end + 2);
  return absl::InvalidArgumentError(error);
}

}  // namespace rekindle::functions
