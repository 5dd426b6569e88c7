#include "hook/json.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::HasSubstr;

class Parsed {
 public:
  explicit Parsed(const std::string& text) {
    // A copy of exactly that size, so that a sanitizer sees every step beyond its end.
    std::vector<char> exact(text.begin(), text.end());
    ok_ = rekindle_json_parse(exact.data(), exact.size(), &json_, why_, sizeof(why_)) == 0;
    error_ = ok_ ? 0 : errno;
  }
  Parsed(const Parsed&) = delete;
  Parsed& operator=(const Parsed&) = delete;
  ~Parsed() {
    if (ok_) rekindle_json_free(&json_);
  }

  bool ok() const { return ok_; }
  int error() const { return error_; }
  std::string why() const { return why_; }
  const rekindle_json& json() const { return json_; }
  std::string String(const char* name) const { return rekindle_json_string(&json_, name, "(none)"); }

 private:
  rekindle_json json_{};
  char why_[160] = "";
  bool ok_ = false;
  int error_ = 0;
};

TEST(JsonTest, ReadsAMessage) {
  Parsed parsed(
      " {\"type\" : \"restored\",\"environment\":{\"A\":\"1\", \"B\":\"\"},\"template\":false,\n"
      "\t\"pid\":-42,\"other\":null, \"empty\":{ }} ");
  ASSERT_TRUE(parsed.ok()) << parsed.why();
  EXPECT_EQ(parsed.String("type"), "restored");
  EXPECT_EQ(parsed.String("template"), "(none)");  // there, but no string
  const rekindle_json& json = parsed.json();
  const rekindle_json_member* environment = rekindle_json_find(&json, "environment", REKINDLE_JSON_OBJECT);
  ASSERT_NE(environment, nullptr);
  ASSERT_EQ(environment->count, 2u);
  EXPECT_STREQ(json.nested[environment->first].name, "A");
  EXPECT_STREQ(json.nested[environment->first].string, "1");
  EXPECT_STREQ(json.nested[environment->first + 1].name, "B");
  EXPECT_STREQ(json.nested[environment->first + 1].string, "");
  ASSERT_NE(rekindle_json_find(&json, "template", REKINDLE_JSON_BOOLEAN), nullptr);
  EXPECT_FALSE(rekindle_json_find(&json, "template", REKINDLE_JSON_BOOLEAN)->truth);
  EXPECT_EQ(rekindle_json_find(&json, "pid", REKINDLE_JSON_NUMBER)->number, -42);
  EXPECT_NE(rekindle_json_find(&json, "other", REKINDLE_JSON_NULL), nullptr);
  EXPECT_EQ(rekindle_json_find(&json, "empty", REKINDLE_JSON_OBJECT)->count, 0u);
}

TEST(JsonTest, DecodesStrings) {
  Parsed parsed(R"({"a":"\"\\\/\b\f\n\r\t","b":"\u0041\u00e4\u20ac\ud83d\ude00","c":"ä€😀"})");
  ASSERT_TRUE(parsed.ok()) << parsed.why();
  EXPECT_EQ(parsed.String("a"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(parsed.String("b"), "Aä€😀");
  EXPECT_EQ(parsed.String("c"), "ä€😀");
}

TEST(JsonTest, ReadsTheLimitsOfNumbers) {
  Parsed parsed(R"({"least":-9223372036854775808,"most":9223372036854775807,"zero":0,"minus":-0})");
  ASSERT_TRUE(parsed.ok()) << parsed.why();
  EXPECT_EQ(rekindle_json_find(&parsed.json(), "least", REKINDLE_JSON_NUMBER)->number, INT64_MIN);
  EXPECT_EQ(rekindle_json_find(&parsed.json(), "most", REKINDLE_JSON_NUMBER)->number, INT64_MAX);
  EXPECT_EQ(rekindle_json_find(&parsed.json(), "zero", REKINDLE_JSON_NUMBER)->number, 0);
  EXPECT_EQ(rekindle_json_find(&parsed.json(), "minus", REKINDLE_JSON_NUMBER)->number, 0);
}

TEST(JsonTest, RefusesWhatIsNotStrict) {
  const std::vector<std::pair<std::string, std::string>> kBad = {
      {"", "an object was expected"},
      {"[]", "an object was expected"},
      {"{", "a string was expected"},
      {"{}x", "something after the object"},
      {"{}{}", "something after the object"},
      {R"({"a":1,})", "a string was expected"},
      {R"({,"a":1})", "a string was expected"},
      {R"({"a":1 "b":2})", "a comma or a closing brace"},
      {R"({"a" 1})", "a colon was expected"},
      {R"({'a':1})", "a string was expected"},
      {R"({a:1})", "a string was expected"},
      {R"({"a":})", "a value was expected"},
      {R"({"a":[1]})", "a value was expected"},
      {R"({"a":True})", "a value was expected"},
      {R"({"a":+1})", "a value was expected"},
      {R"({"a":-})", "a value was expected"},
      {R"({"a":01})", "begins with a zero"},
      {R"({"a":1.5})", "no integer"},
      {R"({"a":1e3})", "no integer"},
      {R"({"a":9223372036854775808})", "does not fit"},
      {R"({"a":-9223372036854775809})", "does not fit"},
      {R"({"a":99999999999999999999999999})", "does not fit"},
      {R"({"a":1,"a":2})", "comes twice"},
      {R"({"e":{"a":"1","a":"2"}})", "comes twice"},
      {R"({"e":{"a":1}})", "a string was expected"},
      {R"({"e":{"a":{"b":"c"}}})", "a string was expected"},
      {R"({"e":{"a":"1"})", "a comma or a closing brace"},
      {R"({"a":"x)", "cut off"},
      {R"({"a":"x\)", "cut off"},
      {R"({"a":"\x"})", "unknown escape"},
      {R"({"a":"\u12"})", "no hexadecimal digit"},
      {R"({"a":"\u12)", "cut off"},
      {R"({"a":"\u0000"})", "NUL"},
      {R"({"a":"\ud800"})", "surrogate"},
      {R"({"a":"\ud800\u0041"})", "surrogate"},
      {R"({"a":"\udc00"})", "surrogate"},
      {std::string("{\"a\":\"x\0y\"}", 11), "control character"},
      {std::string("{\"a\":1}\0", 8), "something after the object"},
      {"{\"a\":\"\n\"}", "control character"},
      {"{\"a\":\"\x80\"}", "UTF-8"},
      {"{\"a\":\"\xc0\xaf\"}", "UTF-8"},
      {"{\"a\":\"\xe2\x82\"}", "UTF-8"},
      {"{\"a\":\"\xe2\x82", "UTF-8"},
      {"{\"a\":\"\xed\xa0\x80\"}", "UTF-8"},
      {"{\"a\":\"\xf5\x80\x80\x80\"}", "UTF-8"},
      {"\xef\xbb\xbf{}", "an object was expected"},
      {"{//\n}", "a string was expected"},
  };
  for (const auto& [text, why] : kBad) {
    Parsed parsed(text);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error(), EBADMSG) << text;
    EXPECT_THAT(parsed.why(), HasSubstr(why)) << text;
  }
}

TEST(JsonTest, RefusesTooManyMembers) {
  std::string text = "{";
  for (int i = 0; i < 4097; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  Parsed parsed(text + "}");
  EXPECT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.why(), HasSubstr("too many"));
}

// Whatever bytes come, the answer is yes or no; what was accepted can be written and read again.
TEST(JsonTest, SurvivesMutations) {
  const std::string kGood =
      R"({"type":"restored","instance":"a\u00e4\ud83d\ude00","n":-12,"t":true,"z":null,"environment":{"K":"V\n","L":""}})";
  const std::string kAlphabet = "{}[]\",:\\u0123aefnrt- \n\x80\xe2\xf0\xff";
  std::mt19937 random(12345);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text = kGood;
    for (unsigned change = random() % 4 + 1; change > 0; --change) {
      size_t at = text.empty() ? 0 : random() % text.size();
      char c = kAlphabet[random() % kAlphabet.size()];
      switch (random() % 4) {
        case 0:
          if (!text.empty()) text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        case 2:
          if (!text.empty()) text.erase(at, random() % 5 + 1);
          break;
        default:
          text.resize(at);
      }
    }
    Parsed parsed(text);
    if (!parsed.ok()) {
      ASSERT_EQ(parsed.error(), EBADMSG);
      ASSERT_NE(parsed.why(), "");
      continue;
    }
    ++accepted;
    char buffer[1024];
    rekindle_json_writer writer;
    rekindle_json_begin(&writer, buffer, sizeof(buffer));
    rekindle_json_add_string(&writer, "instance", parsed.String("instance").c_str());
    size_t length = rekindle_json_end(&writer);
    ASSERT_GT(length, 0u);
    Parsed again(std::string(buffer, length));
    ASSERT_TRUE(again.ok()) << buffer << ": " << again.why();
    ASSERT_EQ(again.String("instance"), parsed.String("instance"));
  }
  EXPECT_GT(accepted, 0);
}

TEST(JsonTest, WritesWhatItReads) {
  char buffer[256];
  rekindle_json_writer writer;
  rekindle_json_begin(&writer, buffer, sizeof(buffer));
  rekindle_json_add_string(&writer, "s", "\"\\\n\x01ä\xff.");
  rekindle_json_add_number(&writer, "n", INT64_MIN);
  size_t length = rekindle_json_end(&writer);
  ASSERT_EQ(length, strlen(buffer));
  EXPECT_STREQ(buffer, "{\"s\":\"\\\"\\\\\\u000a\\u0001ä?.\",\"n\":-9223372036854775808}");
  Parsed parsed(buffer);
  ASSERT_TRUE(parsed.ok()) << parsed.why();
  EXPECT_EQ(parsed.String("s"), "\"\\\n\x01ä?.");
}

TEST(JsonTest, SaysWhenItDoesNotFit) {
  for (size_t size = 1; size < 20; ++size) {
    std::vector<char> buffer(size);
    rekindle_json_writer writer;
    rekindle_json_begin(&writer, buffer.data(), buffer.size());
    rekindle_json_add_string(&writer, "name", "value");
    size_t length = rekindle_json_end(&writer);
    if (size < sizeof("{\"name\":\"value\"}")) {
      EXPECT_EQ(length, 0u) << size;
    } else {
      EXPECT_STREQ(buffer.data(), "{\"name\":\"value\"}");
    }
  }
}

}  // namespace
