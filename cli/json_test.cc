#include "cli/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {
namespace {

using ::testing::HasSubstr;

TEST(JsonTest, WhatIsNotKnownIsNullAndNotZero) {
  v1::GpuUse use;
  EXPECT_THAT(ToJson(use), HasSubstr("\"bytes\":null"));
  use.set_bytes(0);
  EXPECT_THAT(ToJson(use), HasSubstr("\"bytes\":0"));
}

}  // namespace
}  // namespace rekindle::cli
