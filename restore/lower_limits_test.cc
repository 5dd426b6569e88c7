#include "restore/lower_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "criu/images.pb.h"
#include "criu/test_images.h"

namespace rekindle::restore {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kNone = ~uint64_t{0};

// Of a process with this limit of open files, and of all else whatever there is.
std::string CoreWithFiles(uint64_t soft, uint64_t hard) {
  criu::pb::Core core;
  for (int number = 0; number < RLIMIT_NLIMITS; ++number) {
    auto* limit = core.mutable_task()->mutable_limits()->add_limits();
    if (number != RLIMIT_NOFILE) continue;
    limit->set_soft(soft);
    limit->set_hard(hard);
  }
  return criu::MakeImage(0x55053847, {core.SerializeAsString()});
}

TEST(LowerLimitsTest, AreTold) {
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_THAT(LowerLimits(CoreWithFiles(now.rlim_cur, now.rlim_max), ::getpid()), IsEmpty());
  EXPECT_THAT(LowerLimits(CoreWithFiles(1, 1), ::getpid()), IsEmpty());
  if (now.rlim_max == RLIM_INFINITY) GTEST_SKIP() << "no number of files is too high here";
  EXPECT_THAT(LowerLimits(CoreWithFiles(now.rlim_cur, kNone), ::getpid()),
              ElementsAre(AllOf(HasSubstr("open files (ulimit -n)"), HasSubstr("unlimited"))));
  EXPECT_THAT(LowerLimits(CoreWithFiles(kNone, kNone), ::getpid()), ElementsAre(HasSubstr("was unlimited")));
}

TEST(LowerLimitsTest, OfWhatDoesNotTellThereIsNothingToTell) {
  EXPECT_THAT(LowerLimits("no image", ::getpid()), IsEmpty());
  EXPECT_THAT(LowerLimits(criu::MakeImage(0x55053847, {""}), ::getpid()), IsEmpty());
}

}  // namespace
}  // namespace rekindle::restore
