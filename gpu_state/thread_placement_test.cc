#include "gpu_state/thread_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace rekindle::gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

unsigned long FirstWord(const MemoryPolicy& policy) { return policy.nodes.empty() ? 0 : policy.nodes[0]; }

TEST(ThreadPlacementTest, PoliciesAsTheKernelTellsThem) {
  EXPECT_EQ(PolicyOfLine("55d0 default file=/bin/true mapped=1"), MemoryPolicy());
  EXPECT_EQ(PolicyOfLine("55d0 local anon=1"), MemoryPolicy());
  EXPECT_EQ(PolicyOfLine(""), MemoryPolicy());
  EXPECT_EQ(PolicyOfLine("55d0 bind:x anon=1"), MemoryPolicy());
  const MemoryPolicy bind = PolicyOfLine("55d0 bind:0-1,3 anon=1");
  EXPECT_EQ(bind.mode, MPOL_BIND);
  EXPECT_EQ(FirstWord(bind), 0b1011ul);
  const MemoryPolicy prefer = PolicyOfLine("55d0 prefer:1 file=/bin/true");
  EXPECT_EQ(prefer.mode, MPOL_PREFERRED);
  EXPECT_EQ(FirstWord(prefer), 0b10ul);
  const MemoryPolicy many = PolicyOfLine("55d0 prefer (many):0,2 file=/bin/true");
  EXPECT_EQ(many.mode, MPOL_PREFERRED_MANY);
  EXPECT_EQ(FirstWord(many), 0b101ul);
  const MemoryPolicy interleave = PolicyOfLine("55d0 interleave=static:0-1 anon=1");
  EXPECT_EQ(interleave.mode, MPOL_INTERLEAVE);
  EXPECT_EQ(FirstWord(interleave), 0b11ul);
}

std::vector<int> ProcessorsOf(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(thread, sizeof set, &set), 0);
  std::vector<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

// The mode, and the first nodes.
std::vector<unsigned long> OwnPolicy() {
  int mode = 0;
  unsigned long nodes[16] = {};
  EXPECT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, nullptr, 0), 0);
  return {static_cast<unsigned long>(mode), nodes[0]};
}

TEST(ThreadPlacementTest, IsThatOfAnotherProcessForAWhile) {
  const std::vector<int> own = ProcessorsOf(0);
  int nodes = 0;
  const bool has_nodes = ::syscall(SYS_get_mempolicy, &nodes, nullptr, 0, nullptr, 0) == 0 &&
                         ::access("/proc/self/numa_maps", R_OK) == 0;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(own.back(), &last);
    ::sched_setaffinity(0, sizeof last, &last);
    unsigned long first_node = 1;
    ::syscall(SYS_set_mempolicy, MPOL_BIND, &first_node, 8 * sizeof first_node);
    (void)!::write(ready[1], "", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  {
    const ThreadPlacement placement = ThreadPlacement::Of(child, child);
    EXPECT_EQ(placement.processors(), 1u);
    const ThreadPlacement::Adopted adopted(placement);
    EXPECT_THAT(ProcessorsOf(0), ElementsAre(own.back()));
    if (has_nodes) {
      EXPECT_THAT(OwnPolicy(), ElementsAre(MPOL_BIND, 1));
    }
  }
  EXPECT_EQ(ProcessorsOf(0), own);
  if (has_nodes) {
    EXPECT_THAT(OwnPolicy(), ElementsAre(MPOL_DEFAULT, 0));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // Of one that has gone nothing is known, and all stays as it is.
  const ThreadPlacement gone = ThreadPlacement::Of(child, child);
  EXPECT_EQ(gone.processors(), 0u);
  const ThreadPlacement::Adopted adopted(gone);
  EXPECT_EQ(ProcessorsOf(0), own);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace rekindle::gpu
