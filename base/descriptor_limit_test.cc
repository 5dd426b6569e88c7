#include "base/descriptor_limit.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace rekindle {
namespace {

rlimit Limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

// In a process of its own: it is done once.
TEST(DescriptorLimit, JobsHaveTheOneThatWeWereStartedWith) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit = Limit();
    limit.rlim_cur = 100;
    if (limit.rlim_max <= 100 || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::_exit(2);
    RestoreDescriptorLimit();
    if (Limit().rlim_cur != 100) ::_exit(3);
    RaiseDescriptorLimit();
    RaiseDescriptorLimit();
    if (Limit().rlim_cur != limit.rlim_max) ::_exit(4);
    if (OriginalDescriptorLimit() != 100) ::_exit(6);
    RestoreDescriptorLimit();
    ::_exit(Limit().rlim_cur == 100 && Limit().rlim_max == limit.rlim_max ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace rekindle
