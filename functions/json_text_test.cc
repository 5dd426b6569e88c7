#include "functions/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rekindle::functions {
namespace {

TEST(JsonTextTest, Json) {
  for (std::string text :
       {std::string("null"), std::string(" [1, -2.5e3, \"\\u00fc\", {\"a\": []}]\n"), std::string("0"),
        std::string("1e999"), std::string(400, '9'), std::string(100'000, '[') + std::string(100'000, ']')}) {
    EXPECT_TRUE(CheckJson(text).ok()) << text.substr(0, 100);
  }
}

TEST(JsonTextTest, WhatIsNone) {
  for (std::string text :
       {std::string(), std::string(" "), std::string("{"), std::string("{}x"), std::string("{'a':1}"),
        std::string("01"), std::string("nul"), std::string("\"\x80\""), std::string("\"\n\""),
        std::string("1\0", 2), std::string(100'000, '[')}) {
    absl::Status status = CheckJson(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("parse error at "))
        << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace rekindle::functions
