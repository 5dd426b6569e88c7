#include "daemon/job_strays.h"

#include <signal.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobStrays, OnlyThoseOfBothLooksCount) {
  const Strays before = {{10, {1, "a"}}, {11, {1, "b"}}, {12, {1, "c"}}};
  const Strays after = {{10, {1, "a"}}, {11, {2, "another"}}, {13, {1, "d"}}};
  EXPECT_THAT(InBoth(before, after), testing::ElementsAre(testing::Key(10)));
}

TEST(JobStrays, AFewAreNamed) {
  Strays strays;
  for (pid_t pid = 10; pid < 15; ++pid) strays[pid] = {1, "redis-server"};
  const std::string text = DescribeStrays(strays, true);
  EXPECT_THAT(text, HasSubstr("process 10 (redis-server), process 11"));
  EXPECT_THAT(text, HasSubstr("2 more"));
  EXPECT_THAT(text, HasSubstr("when the job dies they are ended"));
  EXPECT_THAT(DescribeStrays(strays, false), Not(HasSubstr("when the job dies")));
}

}  // namespace
}  // namespace rekindle::daemon
