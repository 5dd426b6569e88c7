#include "cli/number_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "cli/arguments.h"

namespace rekindle::cli {
namespace {

using ::testing::HasSubstr;

TEST(NumberChecksTest, WholeNumbersAreThoseThat64BitsHold) {
  auto error = [](std::string text) { return WholeAboveZero()(text); };
  for (const char* good : {"1", "42", "18446744073709551615"}) EXPECT_EQ(error(good), "") << good;
  for (const char* bad : {"0", "-1", "1.5", "", "many", "1e3", "18446744073709551616"}) {
    EXPECT_THAT(error(bad), HasSubstr("is no whole number from 1 to 18446744073709551615")) << bad;
  }
}

TEST(NumberChecksTest, NumbersAboveZeroAreFinite) {
  auto error = [](std::string text) { return AboveZero()(text); };
  for (const char* good : {"1", "0.5", "1e3"}) EXPECT_EQ(error(good), "") << good;
  for (const char* bad : {"0", "-1", "", "nan", "inf", "many"}) {
    EXPECT_THAT(error(bad), HasSubstr("is no number above 0")) << bad;
  }
}

TEST(NumberChecksTest, LeadingZerosMakeNoOctalNumber) {
  const ParsedArguments prune = ParseArguments({"prune", "--all", "--keep-last", "010"}, "/home/me", {});
  ASSERT_TRUE(prune.status.ok()) << prune.status;
  EXPECT_EQ(std::get<v1::PruneImagesRequest>(prune.invocation.command).keep_last(), 10u);
  const ParsedArguments run =
      ParseArguments({"run", "--restarts", "08", "--keep", "012", "true"}, "/home/me", {});
  ASSERT_TRUE(run.status.ok()) << run.status;
  const v1::Supervision& policy = std::get<v1::RunRequest>(run.invocation.command).supervision();
  EXPECT_EQ(policy.restarts(), 8u);
  EXPECT_EQ(policy.keep_images(), 12u);
  const absl::Status hexadecimal =
      ParseArguments({"run", "--restarts", "0x10", "true"}, "/home/me", {}).status;
  EXPECT_TRUE(absl::IsInvalidArgument(hexadecimal)) << hexadecimal;
  EXPECT_THAT(std::string(hexadecimal.message()), HasSubstr("--restarts: '0x10' is no whole number"));
}

}  // namespace
}  // namespace rekindle::cli
