#include "base/ends_for_limits.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <functional>
#include <new>
#include <system_error>

#include "absl/strings/match.h"

namespace rekindle {
namespace {

TEST(EndsForLimitsTest, Descriptors) {
  EXPECT_TRUE(CheckDescriptorLimit(3, "rekindle").ok());
  const absl::Status few = CheckDescriptorLimit(uint64_t{1} << 40, "rekindle");
  EXPECT_EQ(few.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(few.message(), "ulimit -n")) << few;
}

// As a thread ends that nobody catches exceptions of.
template <typename Exception>
void ThrowUncaught(const Exception& exception) {
  TellOfLimitsAtTheEnd("rekindled");
  const std::function<void()> raise = [&] { throw exception; };
  [&]() noexcept { raise(); }();
}

TEST(EndsForLimitsDeathTest, WhatWasMissingIsTold) {
  EXPECT_EXIT(ThrowUncaught(std::bad_alloc()), testing::ExitedWithCode(1),
              "rekindled: error: there is no memory");
  EXPECT_EXIT(ThrowUncaught(std::system_error(EAGAIN, std::generic_category())), testing::ExitedWithCode(1),
              "rekindled: error: no thread could be made: .*ulimit -u");
  // A mistake is one still.
  EXPECT_EXIT(ThrowUncaught(std::system_error(EBADF, std::generic_category())),
              testing::KilledBySignal(SIGABRT), "terminate called after throwing .*system_error");
  EXPECT_EXIT(ThrowUncaught(std::bad_array_new_length()), testing::KilledBySignal(SIGABRT),
              "terminate called after throwing .*bad_array_new_length");
}

}  // namespace
}  // namespace rekindle
