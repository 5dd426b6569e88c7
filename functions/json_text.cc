#include "functions/json_text.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"

namespace rekindle::functions {
namespace {

// Goes through the text once, byte by byte. Numbers are looked at as text: how large they are is for the
// function to judge.
class Checker {
 public:
  explicit Checker(absl::string_view text) : text_(text) {}

  absl::Status Check() {
    // Each turn is one value, and all that ends with it: no recursion, however deep it is.
    for (;;) {
      SkipSpace();
      if (Take('{')) {
        if (!Open(kObject)) return TooDeep();
        SkipSpace();
        if (!Take('}')) {
          if (!Name()) return Wrong();
          continue;
        }
        open_.pop_back();
      } else if (Take('[')) {
        if (!Open(kArray)) return TooDeep();
        SkipSpace();
        if (!Take(']')) continue;
        open_.pop_back();
      } else if (!Scalar()) {
        return Wrong();
      }
      if (!EndOfValue()) return Wrong();
      if (done_) return absl::OkStatus();
    }
  }

 private:
  static constexpr bool kObject = true, kArray = false;

  bool AtEnd() const { return at_ == text_.size(); }
  unsigned char Byte() const { return AtEnd() ? 0 : static_cast<unsigned char>(text_[at_]); }
  bool Take(char c) {
    if (AtEnd() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void SkipSpace() {
    while (Byte() == ' ' || Byte() == '\t' || Byte() == '\n' || Byte() == '\r') ++at_;
  }
  bool Open(bool what) {
    if (open_.size() == kDeepestJson) return false;
    open_.push_back(what);
    return true;
  }

  // What may follow a value: the ends of what it is in, and the way to the next one.
  bool EndOfValue() {
    for (;;) {
      SkipSpace();
      if (open_.empty()) {
        done_ = AtEnd();
        if (!done_) expected_ = "the end";
        return done_;
      }
      const bool in_object = open_.back() == kObject;
      if (Take(',')) {
        SkipSpace();
        return !in_object || Name();
      }
      if (!Take(in_object ? '}' : ']')) return Expected(in_object ? "',' or '}'" : "',' or ']'");
      open_.pop_back();
    }
  }

  bool Name() {
    if (Byte() != '"') return Expected("a name in quotes");
    if (!String()) return false;
    SkipSpace();
    return Take(':') || Expected("':'");
  }

  bool Scalar() {
    switch (Byte()) {
      case '"':
        return String();
      case 't':
        return Word("true");
      case 'f':
        return Word("false");
      case 'n':
        return Word("null");
      default:
        return Byte() == '-' || absl::ascii_isdigit(Byte()) ? Number() : Expected("a value");
    }
  }

  bool Word(absl::string_view word) {
    for (const char c : word) {
      if (!Take(c)) return Expected(word);
    }
    return true;
  }

  bool Digits() {
    if (!absl::ascii_isdigit(Byte())) return Expected("a digit");
    while (absl::ascii_isdigit(Byte())) ++at_;
    return true;
  }

  bool Number() {
    Take('-');
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (!Take('e') && !Take('E')) return true;
    if (!Take('+')) Take('-');
    return Digits();
  }

  bool String() {
    ++at_;
    for (;;) {
      const unsigned char c = Byte();
      if (AtEnd()) return Expected("'\"'");
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c == '\\') {
        if (!Escape()) return false;
      } else if (c < 0x20) {
        return Expected("no control character in a string");
      } else if (c < 0x80) {
        ++at_;
      } else if (!Character()) {
        return Expected("UTF-8");
      }
    }
  }

  bool Escape() {
    ++at_;
    if (!Take('u')) {
      if (AtEnd() || absl::string_view("\"\\/bfnrt").find(text_[at_]) == absl::string_view::npos)
        return Expected("an escape");
      ++at_;
      return true;
    }
    uint32_t unit = 0;
    if (!Hex(&unit)) return false;
    if (unit >= 0xdc00 && unit <= 0xdfff)
      return Expected("no second half of a surrogate pair without the first");
    if (unit < 0xd800 || unit > 0xdbff) return true;
    if (!Take('\\') || !Take('u') || !Hex(&unit) || unit < 0xdc00 || unit > 0xdfff)
      return Expected("the second half of a surrogate pair");
    return true;
  }

  bool Hex(uint32_t* unit) {
    *unit = 0;
    for (int i = 0; i < 4; ++i) {
      const unsigned char c = Byte();
      if (!absl::ascii_isxdigit(c)) return Expected("four hexadecimal digits");
      *unit = *unit * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      ++at_;
    }
    return true;
  }

  // Of more than one byte.
  bool Character() {
    const Utf8Character character = FirstUtf8Character(text_.substr(at_));
    at_ += character.bytes;
    return character.whole;
  }

  // Always false.
  bool Expected(absl::string_view what) {
    expected_ = std::string(what);
    return false;
  }

  absl::Status Wrong() const {
    return absl::InvalidArgumentError(absl::StrCat("parse error at byte ", at_ + 1, ": ", expected_,
                                                   " is expected, and there is ", Shown()));
  }
  absl::Status TooDeep() const {
    return absl::InvalidArgumentError(absl::StrCat("parse error at byte ", at_, ": more than ", kDeepestJson,
                                                   " arrays and objects within each other"));
  }
  std::string Shown() const {
    if (AtEnd()) return "the end";
    return absl::ascii_isgraph(Byte()) ? absl::StrCat("'", text_.substr(at_, 1), "'")
                                       : absl::StrFormat("byte 0x%02x", Byte());
  }

  const absl::string_view text_;
  size_t at_ = 0;
  std::vector<bool> open_;  // what the next byte is in, the innermost last
  bool done_ = false;
  std::string expected_;
};

}  // namespace

absl::Status CheckJson(absl::string_view text) { return Checker(text).Check(); }

}  // namespace rekindle::functions
