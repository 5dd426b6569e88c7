#include "base/processors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/test_child.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ProcessorsTest, ListsAsTheKernelHasThem) {
  EXPECT_EQ(FormatProcessors({}), "");
  EXPECT_EQ(FormatProcessors({5}), "5");
  EXPECT_EQ(FormatProcessors({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_THAT(*ParseProcessors("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(*ParseProcessors("\n"), IsEmpty());
  for (const char* text : {"x", "1-", "3-1", "1,,2", "1-2-3", "-1", "8192"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseProcessors(text).status())) << text;
  }
}

TEST(ProcessorsTest, OfThreads) {
  auto before = AffinityOf(0);
  ASSERT_TRUE(before.ok()) << before.status();
  auto online = OnlineProcessors();
  ASSERT_TRUE(online.ok()) << online.status();
  EXPECT_TRUE(online->contains(*before->begin()));

  ASSERT_TRUE(SetAffinity(0, {*before->rbegin()}).ok());
  EXPECT_THAT(*AffinityOf(::gettid()), ElementsAre(*before->rbegin()));
  ASSERT_TRUE(SetAffinity(0, *before).ok());
  EXPECT_EQ(*AffinityOf(0), *before);

  EXPECT_TRUE(absl::IsInvalidArgument(SetAffinity(0, {8191}))) << SetAffinity(0, {8191});
  EXPECT_TRUE(absl::IsNotFound(AffinityOf(1 << 23).status())) << AffinityOf(1 << 23).status();
}

// A cgroup with a cpuset of this machine's first processor, to which another one may come.
class GrowingCpuset {
 public:
  explicit GrowingCpuset(const Processors& first) {
    made_ = ::mkdir(folder_.c_str(), 0755) == 0 && Write("cpuset.mems", "0") && Set(first);
  }
  ~GrowingCpuset() { ::rmdir(folder_.c_str()); }
  bool made() const { return made_; }
  bool Set(const Processors& processors) { return Write("cpuset.cpus", FormatProcessors(processors)); }
  bool Take(pid_t pid) { return Write("cgroup.procs", std::to_string(pid)); }

 private:
  bool Write(const char* name, const std::string& value) {
    return (std::ofstream(folder_ + "/" + name) << value << std::flush).good();
  }

  const std::string folder_ = "/sys/fs/cgroup/cpuset/rekindle-processors." + std::to_string(::getpid());
  bool made_ = false;
};

TEST(ProcessorsTest, WhoIsNotBoundGetsWhatComesToHisCpuset) {
  const Processors both = OnlineProcessors().value_or(Processors());
  const Processors first = {*both.begin()};
  if (both.size() < 2) GTEST_SKIP() << "there is one processor";
  GrowingCpuset cpuset(first);
  if (!cpuset.made()) GTEST_SKIP() << "this machine has no cgroup v1 for cpusets";
  {  // the cgroup must be empty to be removed
    const TestChild free;
    ASSERT_TRUE(cpuset.Take(free.pid()));
    ASSERT_TRUE(SetAffinityWithinCpuset(free.pid(), first).ok());
    ASSERT_TRUE(cpuset.Set(both));
    EXPECT_EQ(*AffinityOf(free.pid()), both);
    // Less than the cpuset has: he is bound.
    ASSERT_TRUE(SetAffinityWithinCpuset(free.pid(), first).ok());
    EXPECT_EQ(*AffinityOf(free.pid()), first);
  }
}

}  // namespace
}  // namespace rekindle
