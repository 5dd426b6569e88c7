// Waits, within a bound, for what other threads or processes bring about: a test that fails says for what it
// waited, instead of running into its time limit without a word.
#pragma once

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"

namespace rekindle {

// ASSERT_TRUE(Eventually([&] { return idle() == 2; })) << "there are two idle instances";
// `holds` is asked again and again, on this thread. The limit is for a machine that is as slow as can be.
template <typename Condition>
[[nodiscard]] ::testing::AssertionResult Eventually(const Condition& holds,
                                                    absl::Duration limit = absl::Seconds(60)) {
  const Deadline deadline(limit);
  while (!holds()) {
    if (deadline.passed())
      return ::testing::AssertionFailure() << "not so within " << absl::FormatDuration(limit);
    absl::SleepFor(absl::Milliseconds(1));
  }
  return ::testing::AssertionSuccess();
}

}  // namespace rekindle
