#include "base/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

TEST(ParallelTest, EachPartOnce) {
  for (size_t count : {0, 1, 2, 9}) {
    std::vector<std::atomic<int>> calls(count);
    InParallel(count, [&](size_t i) { ++calls[i]; });
    for (const std::atomic<int>& n : calls) EXPECT_EQ(n, 1) << count;
  }
}

TEST(ParallelTest, WithoutThreadsTheCallerDoesIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space for itself than is left here";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // A thread's stack does not fit into so little address space; root has no limit of processes.
    rlimit none{64 << 20, 64 << 20};
    rlimit stack{uint64_t{1} << 40, uint64_t{1} << 40};
    ::setrlimit(RLIMIT_STACK, &stack);
    if (::setrlimit(RLIMIT_AS, &none) != 0) ::_exit(2);
    std::atomic<int> sum{0};
    InParallel(4, [&](size_t i) { sum += static_cast<int>(i) + 1; });
    ::_exit(sum == 10 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ParallelTest, WhatAPartThrowsIsThrownWhenAllHaveEnded) {
  for (size_t throwing : {0, 1, 3}) {
    std::vector<std::atomic<int>> calls(4);
    const auto work = [&]() -> absl::Status {
      InParallel(4, [&](size_t i) {
        ++calls[i];
        if (i == throwing) throw std::system_error(EAGAIN, std::generic_category());
      });
      return absl::OkStatus();
    };
    const absl::Status status = CatchNoMoreThreads(work);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    for (const std::atomic<int>& n : calls) EXPECT_EQ(n, 1) << throwing;
  }
}

TEST(ParallelTest, NoMoreThreadsIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs more address space for itself than is left here";
#endif
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    rlimit none{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_AS, &none) != 0) ::_exit(2);
    const absl::StatusOr<int> made = CatchNoMoreThreads([]() -> absl::StatusOr<int> {
      // The C library keeps some stacks of earlier ones.
      for (int i = 0; i < 64; ++i) std::thread([] { ::pause(); }).detach();
      return 1;
    });
    ::_exit(absl::IsResourceExhausted(made.status()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rekindle
