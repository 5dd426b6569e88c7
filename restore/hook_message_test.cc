#include "restore/hook_message.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

TEST(HookMessageTest, FieldsOfTheirKind) {
  const auto message = ParseMessage(R"({"type":"up","version":2,"ok":true,"imports":["json","re"]})");
  EXPECT_EQ(TextOf(message, "type"), "up");
  EXPECT_EQ(NumberOf(message, "version", 1), 2);
  EXPECT_TRUE(FlagOf(message, "ok"));
  EXPECT_EQ(TextsOf(message, "imports"), std::vector<std::string>({"json", "re"}));
}

TEST(HookMessageTest, AnythingElseIsLikeNothing) {
  for (const char* text : {R"({"type":{"a":1},"version":"2","ok":"yes","imports":{"0":"re"}})",
                           R"({"type":7,"imports":[7,null]})", R"({"type":null,"version":2.5,"ok":1})",
                           R"(["type"])", "7", "null", "", "{", "\xff"}) {
    const auto message = ParseMessage(text);
    EXPECT_EQ(TextOf(message, "type"), "") << text;
    EXPECT_EQ(TextOf(message, "type", "none"), "none") << text;
    EXPECT_EQ(NumberOf(message, "version", 1), 1) << text;
    EXPECT_FALSE(FlagOf(message, "ok")) << text;
    EXPECT_TRUE(TextsOf(message, "imports").empty()) << text;
  }
}

TEST(HookMessageTest, WhatIsTooLongForTheHookIsRefused) {
  nlohmann::json message = {{"type", "fork"}, {"environment", {{"A", ""}}}};
  const size_t others = message.dump().size();
  message["environment"]["A"] = std::string(65536 - others, 'x');
  EXPECT_EQ(MessageText(message).value().size(), 65536u);
  message["environment"]["A"] = std::string(65537 - others, 'x');
  const absl::Status refused = MessageText(message).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("65537 bytes, and its hook takes 65536"));
  EXPECT_EQ(MessageText({{"name", "\xff"}}).value(), "{\"name\":\"\xef\xbf\xbd\"}");
}

TEST(HookMessageTest, DeepOnesEnd) {
  const std::string deep(60'000, '[');
  EXPECT_TRUE(ParseMessage("{\"type\":" + deep + "}").empty());
}

}  // namespace
}  // namespace rekindle::restore
