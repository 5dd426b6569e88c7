#include "base/parallel.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <vector>

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

}  // namespace
}  // namespace rekindle
