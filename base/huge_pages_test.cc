#include "base/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace rekindle {
namespace {

TEST(HugePagesTest, AProcessMayDoWithout) {
  EXPECT_EQ(HugePagesAllowedFor(::getpid()), HugePagesAllowed());
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  EXPECT_FALSE(HugePagesAllowedFor(::getpid()));
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
}

}  // namespace
}  // namespace rekindle
