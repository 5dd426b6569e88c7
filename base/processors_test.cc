#include "base/processors.h"

#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ProcessorsTest, ListsAsTheKernelHasThem) {
  EXPECT_EQ(FormatProcessors({}), "");
  EXPECT_EQ(FormatProcessors({5}), "5");
  EXPECT_EQ(FormatProcessors({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_THAT(*ParseProcessors("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(*ParseProcessors("\n"), IsEmpty());
  for (const char* text : {"x", "1-", "3-1", "1,,2", "1-2-3", "-1", "8192"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseProcessors(text).status())) << text;
  }
}

TEST(ProcessorsTest, OfThreads) {
  auto before = AffinityOf(0);
  ASSERT_TRUE(before.ok()) << before.status();
  auto online = OnlineProcessors();
  ASSERT_TRUE(online.ok()) << online.status();
  EXPECT_TRUE(online->contains(*before->begin()));

  ASSERT_TRUE(SetAffinity(0, {*before->rbegin()}).ok());
  EXPECT_THAT(*AffinityOf(::gettid()), ElementsAre(*before->rbegin()));
  ASSERT_TRUE(SetAffinity(0, *before).ok());
  EXPECT_EQ(*AffinityOf(0), *before);

  EXPECT_TRUE(absl::IsInvalidArgument(SetAffinity(0, {8191}))) << SetAffinity(0, {8191});
  EXPECT_TRUE(absl::IsNotFound(AffinityOf(1 << 23).status())) << AffinityOf(1 << 23).status();
}

}  // namespace
}  // namespace rekindle
