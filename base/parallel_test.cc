#include "base/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sanitized.h"
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

// What `work` returns in a process with so little address space that a thread's stack does not fit: root has
// no limit of processes. -1: it could not be run.
int WithoutThreads(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{1 << 20, 1 << 20};
    ::_exit(::setrlimit(RLIMIT_AS, &none) == 0 ? work() : 255);
  }
  int status = -1;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(ParallelTest, WithoutThreadsTheCallerDoesIt) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space itself";
  EXPECT_EQ(WithoutThreads([] {
              std::atomic<int> sum{0};
              InParallel(4, [&](size_t i) { sum += static_cast<int>(i) + 1; });
              return sum.load();
            }),
            10);
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
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs address space itself";
  EXPECT_EQ(WithoutThreads([] {
              const absl::StatusOr<int> made = CatchNoMoreThreads([]() -> absl::StatusOr<int> {
                // The C library keeps some stacks of earlier ones.
                for (int i = 0; i < 64; ++i) std::thread([] { ::pause(); }).detach();
                return 1;
              });
              return absl::IsResourceExhausted(made.status()) ? 7 : 1;
            }),
            7);
}

}  // namespace
}  // namespace rekindle
