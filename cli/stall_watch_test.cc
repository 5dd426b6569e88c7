#include "cli/stall_watch.h"

#include <string>
#include <utility>
#include <vector>

#include "base/subprocess.h"
#include "gtest/gtest.h"

namespace rekindle::cli {
namespace {

Subprocess Start(std::vector<std::string> argv) {
  SubprocessOptions options;
  options.argv = std::move(argv);
  return *Subprocess::Start(options);
}

TEST(StallWatchTest, WhatMovesNothingHasStalled) {
  const Subprocess idle = Start({"sleep", "1000"});
  StallWatch watch(idle.pid(), absl::Seconds(10));
  EXPECT_FALSE(watch.Stalled(absl::Seconds(9)));
  EXPECT_TRUE(watch.Stalled(absl::Seconds(10)));
  // Another wait: what it did between the two was not waited for.
  EXPECT_FALSE(watch.Stalled(absl::Seconds(1)));
  EXPECT_TRUE(watch.Stalled(absl::Seconds(11)));
  StallWatch patient(idle.pid(), absl::InfiniteDuration());
  EXPECT_FALSE(patient.Stalled(absl::Hours(1000)));
}

TEST(StallWatchTest, WhatMovesDataHasNot) {
  const Subprocess busy = Start({"dd", "if=/dev/zero", "of=/dev/null", "bs=64k", "status=none"});
  StallWatch watch(busy.pid(), absl::Seconds(10));
  int moments = 0;
  for (int second = 10; moments < 3; second += 10) moments += watch.Stalled(absl::Seconds(second)) ? 0 : 1;
}

TEST(StallWatchTest, PatienceIsTwiceTheTimeoutOfRclone) {
  EXPECT_EQ(StallPatience(nullptr), absl::Minutes(10));
  EXPECT_EQ(StallPatience("1m30s"), absl::Minutes(3));
  EXPECT_EQ(StallPatience("45"), absl::Seconds(90));
  EXPECT_EQ(StallPatience("0"), absl::InfiniteDuration());
  EXPECT_EQ(StallPatience("soon"), absl::Minutes(10));
}

}  // namespace
}  // namespace rekindle::cli
