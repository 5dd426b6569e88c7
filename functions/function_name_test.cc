#include "functions/function_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace rekindle::functions {
namespace {

TEST(FunctionNameTest, EveryFormOfAName) {
  struct {
    const char* text;
    const char* name;
    const char* qualifier;
  } cases[] = {
      {"resize", "resize", ""},
      {"Resize-2_b:$LATEST", "Resize-2_b", "$LATEST"},
      {"resize:7", "resize", "7"},
      {"123456789012:function:resize", "resize", ""},
      {"123456789012:function:resize:$LATEST", "resize", "$LATEST"},
      {"arn:aws:lambda:eu-central-1:123456789012:function:resize", "resize", ""},
      {"arn:aws-us-gov:lambda:us-gov-west-1:123456789012:function:resize:prod", "resize", "prod"},
  };
  for (const auto& [text, name, qualifier] : cases) {
    auto parsed = ParseFunctionName(text);
    ASSERT_TRUE(parsed.ok()) << text << parsed.status();
    EXPECT_EQ(parsed->name, name) << text;
    EXPECT_EQ(parsed->qualifier, qualifier) << text;
  }
}

TEST(FunctionNameTest, WhatIsNoName) {
  for (std::string text :
       {std::string(), std::string("a b"), std::string("a/b"), std::string("../etc"), std::string("a:"),
        std::string(":a"), std::string("a:b:c"), std::string("a\0", 2), std::string(65, 'a'),
        std::string("arn:aws:s3:eu-central-1:123456789012:function:resize"),
        std::string("arn:aws:lambda:eu-central-1:123456789012:layer:resize"),
        std::string("arn:aws:lambda:eu-central-1:12345:function:resize"), std::string("a:$HEAD")}) {
    auto parsed = ParseFunctionName(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::StartsWith("1 validation error detected: Value '"));
  }
}

}  // namespace
}  // namespace rekindle::functions
