#include "base/message_text.h"

#include <google/protobuf/struct.pb.h>

#include <string>

#include "absl/base/config.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;
using google::protobuf::Value;

// protobuf's own messages are made in its library, whose maps look otherwise than those of a build with
// ThreadSanitizer.
#ifdef ABSL_HAVE_THREAD_SANITIZER
#define SKIP_WHERE_MAPS_DIFFER() GTEST_SKIP() << "a sanitizer"
#else
#define SKIP_WHERE_MAPS_DIFFER() static_cast<void>(0)
#endif

constexpr char kNoText[] = "a\xff.ckpt";
constexpr char kMadeText[] = "a?.ckpt";

TEST(MessageTextTest, WhatIsTextStaysAsItIs) {
  SKIP_WHERE_MAPS_DIFFER();
  Struct message;
  (*message.mutable_fields())["größe"].set_string_value("日本");
  message.mutable_fields()->insert({"nothing", Value()});
  EXPECT_TRUE(IsText(message));
  const std::string before = message.DebugString();
  MakeText(&message);
  EXPECT_EQ(message.DebugString(), before);
  EXPECT_TRUE(IsText(Struct()));
}

TEST(MessageTextTest, AFieldOfItsOwn) {
  Value message;
  message.set_string_value(kNoText);
  EXPECT_FALSE(IsText(message));
  EXPECT_EQ(FindWhatIsNoText(message), kNoText);
  MakeText(&message);
  EXPECT_EQ(message.string_value(), kMadeText);
  EXPECT_TRUE(IsText(message));
  EXPECT_EQ(FindWhatIsNoText(message), std::nullopt);
}

TEST(MessageTextTest, OfAMessageBesideOneThatIsText) {
  ListValue message;
  message.add_values()->set_string_value("ä");
  message.add_values()->set_number_value(1);
  message.add_values()->set_string_value(kNoText);
  EXPECT_FALSE(IsText(message));
  MakeText(&message);
  EXPECT_EQ(message.values(0).string_value(), "ä");
  EXPECT_EQ(message.values(1).number_value(), 1);
  EXPECT_EQ(message.values(2).string_value(), kMadeText);
}

TEST(MessageTextTest, KeysAndValuesOfAMap) {
  SKIP_WHERE_MAPS_DIFFER();
  Struct message;
  (*message.mutable_fields())[kNoText].set_string_value(kNoText);
  (*message.mutable_fields())["b"].set_string_value("c");
  EXPECT_EQ(FindWhatIsNoText(message), kNoText);
  MakeText(&message);
  ASSERT_EQ(message.fields_size(), 2);
  EXPECT_EQ(message.fields().at(kMadeText).string_value(), kMadeText);
  EXPECT_EQ(message.fields().at("b").string_value(), "c");
}

TEST(MessageTextTest, OfALargeOne) {
  ListValue message;
  message.add_values()->set_string_value(std::string(size_t{2} << 20, 'a'));
  EXPECT_TRUE(IsText(message));
  message.add_values()->set_string_value(kNoText);
  EXPECT_FALSE(IsText(message));
  MakeText(&message);
  EXPECT_EQ(message.values(1).string_value(), kMadeText);
  EXPECT_TRUE(IsText(message));
}

TEST(MessageTextTest, DeepInside) {
  constexpr int kLevels = 100;
  Value message;
  Value* inner = &message;
  for (int i = 0; i < kLevels; ++i) {
    ListValue* list = inner->mutable_list_value();
    list->add_values()->set_string_value("text");
    inner = list->add_values();
  }
  inner->set_string_value(kNoText);
  EXPECT_FALSE(IsText(message));
  MakeText(&message);
  EXPECT_TRUE(IsText(message));
  EXPECT_EQ(inner->string_value(), kMadeText);
}

}  // namespace
}  // namespace rekindle
