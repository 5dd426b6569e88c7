#include "base/command_line.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace rekindle {
namespace {

// What the option gets from this text; nothing: it is refused.
template <typename Number>
std::optional<Number> Parse(const std::string& text) {
  Number number{};
  CLI::App app;
  app.add_option("--number", number);
  try {
    app.parse(std::vector<std::string>{"--number=" + text});
  } catch (const CLI::ParseError&) {
    return std::nullopt;
  }
  return number;
}

template <typename Number>
class WholeNumberTest : public ::testing::Test {};
using WholeNumbers = ::testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t,
                                      uint64_t, long long, unsigned long long>;
TYPED_TEST_SUITE(WholeNumberTest, WholeNumbers);

TYPED_TEST(WholeNumberTest, IsDecimal) {
  for (const char* ten : {"10", "010", "00010", "+10"})
    EXPECT_EQ(Parse<TypeParam>(ten), TypeParam{10}) << ten;
  EXPECT_EQ(Parse<TypeParam>("08"), TypeParam{8});
  for (const char* none :
       {"0x10", "0X10", "0b1", "1e1", "1.0", "ten", "10 ", "+", "+-1", "99999999999999999999"})
    EXPECT_EQ(Parse<TypeParam>(none), std::nullopt) << none;
}

TEST(CommandLineTest, OnlyWhatHasASignIsLessThanZero) {
  EXPECT_EQ(Parse<int>("-010"), -10);
  EXPECT_EQ(Parse<unsigned>("-1"), std::nullopt);
  EXPECT_EQ(Parse<uint64_t>("-1"), std::nullopt);
}

TEST(CommandLineTest, SeveralNumbersAndRangesAreDecimalToo) {
  EXPECT_EQ(Parse<std::vector<int>>("010"), std::vector<int>{10});
  EXPECT_EQ(Parse<std::optional<int>>("010"), std::optional<int>(10));
  const CLI::Range range(0, 9);
  EXPECT_NE(std::string(range("010")), "");
  EXPECT_EQ(std::string(range("08")), "");
}

TEST(CommandLineTest, FromAFileAndTheEnvironmentToo) {
  const TemporaryDirectory folder =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_options_test.").value();
  const std::string file = folder.path() + "/settings.toml";
  ASSERT_TRUE(std::ofstream(file) << "of-file = 010\n");
  ASSERT_EQ(::setenv("REKINDLE_TEST_NUMBER", "010", 1), 0);
  int of_file = 0;
  uint64_t of_environment = 0;
  CLI::App app;
  app.add_option("--of-file", of_file);
  app.add_option("--of-environment", of_environment)->envname("REKINDLE_TEST_NUMBER");
  app.set_config("--config");
  app.parse(std::vector<std::string>{"--config=" + file});
  ::unsetenv("REKINDLE_TEST_NUMBER");
  EXPECT_EQ(of_file, 10);
  EXPECT_EQ(of_environment, 10u);
}

}  // namespace
}  // namespace rekindle
