#include "functions/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace rekindle::functions {
namespace {

using ::testing::HasSubstr;

TEST(JsonTextTest, Json) {
  for (const std::string& text :
       {std::string("null"), std::string(" [1, -2.5e3, \"\\u00fc\", {\"a\": []}]\n"), std::string("0"),
        std::string("-0.0E+00"), std::string("1e999"), std::string(400, '9'),
        std::string("{\"\":{},\"a\":[[]]}"),
        std::string("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\ud83d\\uDE00\\uFFFF\\u0000\""),
        std::string(
            "\"\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\""),
        std::string(100'000, '[') + std::string(100'000, ']')}) {
    EXPECT_TRUE(CheckJson(text).ok()) << text.substr(0, 100) << ": " << CheckJson(text);
  }
}

TEST(JsonTextTest, WhatIsNone) {
  for (const std::string& text : {std::string(),
                                  std::string(" "),
                                  std::string("{"),
                                  std::string("{}x"),
                                  std::string("{'a':1}"),
                                  std::string("01"),
                                  std::string("nul"),
                                  std::string("\"\x80\""),
                                  std::string("\"\n\""),
                                  std::string("1\0", 2),
                                  std::string("\0", 1),
                                  std::string(100'000, '['),
                                  std::string("[1,]"),
                                  std::string("[,1]"),
                                  std::string("{\"a\":1,}"),
                                  std::string("{\"a\"}"),
                                  std::string("{1:2}"),
                                  std::string("[1}"),
                                  std::string("{\"a\":1]"),
                                  std::string("-"),
                                  std::string("+1"),
                                  std::string("1."),
                                  std::string(".5"),
                                  std::string("1e"),
                                  std::string("1e+"),
                                  std::string("0x10"),
                                  std::string("NaN"),
                                  std::string("True"),
                                  std::string("1 2"),
                                  std::string("\""),
                                  std::string("\"\\"),
                                  std::string("\"\\x\""),
                                  std::string("\"\\u12g4\""),
                                  std::string("\"\\ud800\""),
                                  std::string("\"\\udc00\""),
                                  std::string("\"\\ud800\\u0041\""),
                                  std::string("\"\xc0\x80\""),
                                  std::string("\"\xe0\x80\x80\""),
                                  std::string("\"\xed\xa0\x80\""),
                                  std::string("\"\xf4\x90\x80\x80\""),
                                  std::string("\"\xf5\x80\x80\x80\""),
                                  std::string("\"\xe2\x82\""),
                                  std::string("\xef\xbb\xbf{}"),
                                  std::string("/**/1"),
                                  std::string(kDeepestJson + 1, '[') + std::string(kDeepestJson + 1, ']')}) {
    absl::Status status = CheckJson(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(status.message()), HasSubstr("parse error at ")) << text.substr(0, 100);
  }
  EXPECT_EQ(CheckJson("{\"a\": 1e999, b}").message(),
            "parse error at byte 14: a name in quotes is expected, and there is 'b'");
}

// What follows a number that no double holds is looked at as any other.
TEST(JsonTextTest, AfterANumberOfAnySize) {
  EXPECT_TRUE(CheckJson("[1e999, 2]").ok());
  EXPECT_FALSE(CheckJson("[1e999, }").ok());
  EXPECT_FALSE(CheckJson("1e999 and more").ok());
  EXPECT_FALSE(CheckJson("{\"n\": -1e999, \"x\": \"\x80\"}").ok());
}

// That knows no number beyond a double's range, reads on after a byte order mark, and ends at a zero byte.
bool Comparable(const std::string& text) {
  if (text.find('\0') != std::string::npos || text.rfind("\xef", 0) == 0) return false;
  size_t digits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    digits = absl::ascii_isdigit(static_cast<unsigned char>(text[i])) ? digits + 1 : 0;
    if (digits > 200) return false;
    if (i > 0 && digits == 3) {  // an exponent that long
      size_t begin = i - 2;
      if (begin > 0 && (text[begin - 1] == '+' || text[begin - 1] == '-')) --begin;
      if (begin > 0 && (text[begin - 1] == 'e' || text[begin - 1] == 'E')) return false;
    }
  }
  return true;
}

// A value at random, as text.
std::string AnyJson(std::mt19937& random, int depth) {
  static const auto* const kScalars = new std::vector<std::string>{"null",
                                                                   "true",
                                                                   "false",
                                                                   "0",
                                                                   "-1",
                                                                   "12.50",
                                                                   "1e5",
                                                                   "-3E-2",
                                                                   "\"\"",
                                                                   "\"a\"",
                                                                   "\"\\u00e9\\n\"",
                                                                   "\"\xc3\xa9\"",
                                                                   "\"\\ud83d\\ude00\"",
                                                                   "\"\xf0\x9f\x98\x80\"",
                                                                   "\"\\\"\\\\\""};
  const std::string space = random() % 4 == 0 ? " " : random() % 8 == 0 ? "\r\n\t" : "";
  const unsigned kind = random() % 6;
  if (depth == 0 || kind > 2) return absl::StrCat(space, (*kScalars)[random() % kScalars->size()], space);
  std::string text = kind == 0 ? "[" : "{";
  const unsigned count = random() % 4;
  for (unsigned i = 0; i < count; ++i) {
    absl::StrAppend(&text, i > 0 ? "," : "", kind == 0 ? "" : "\"k\":", AnyJson(random, depth - 1));
  }
  return absl::StrCat(text, space, kind == 0 ? "]" : "}");
}

TEST(JsonTextTest, AsAnotherParserSays) {
  std::mt19937 random(20240611);
  static constexpr absl::string_view kBytes =
      "{}[]\",:\\/ 0123456789.eE+-truefalsnubx\n\t\x80\xbf\xc2\xe2\xed\xf0\xf4\xff";
  size_t good = 0, bad = 0;
  for (int i = 0; i < 60'000; ++i) {
    std::string text = AnyJson(random, 5);
    for (unsigned changes = random() % 4; changes > 0 && !text.empty(); --changes) {
      const size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 4) {
        case 0:
          text[at] = byte;
          break;
        case 1:
          text.insert(at, 1, byte);
          break;
        case 2:
          text.erase(at, 1 + random() % 3);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 8));
          break;
      }
    }
    if (!Comparable(text)) continue;
    const bool theirs = nlohmann::json::accept(text);
    ++(theirs ? good : bad);
    ASSERT_EQ(CheckJson(text).ok(), theirs) << absl::CHexEscape(text) << ": " << CheckJson(text);
  }
  EXPECT_GT(good, 10'000u);
  EXPECT_GT(bad, 10'000u);
}

}  // namespace
}  // namespace rekindle::functions
