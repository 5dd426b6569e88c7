#include "cli/number_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace rekindle::cli
