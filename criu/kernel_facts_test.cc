// Real CRIU.
#include "criu/kernel_facts.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "criu/installation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::ElementsAre;

// Whether CRIU has left what it knows there, and when.
struct timespec KnownSince() {
  struct stat info = {};
  return ::stat("/run/criu.kdat", &info) == 0 ? info.st_mtim : timespec{};
}

class KernelFactsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to give CRIU mounts of its own";
  }
};

// Also where a tmpfs for CRIU covers it meanwhile.
INSTANTIATE_TEST_SUITE_P(Folders, KernelFactsTest, testing::Values("/tmp", "/run"));

TEST_P(KernelFactsTest, AreFoundOutOnceInABoot) {
  const auto criu = FindCriu();
  ASSERT_TRUE(criu.ok()) << criu.status();
  const TemporaryDirectory parent = TemporaryDirectory::Make(GetParam(), "rk_kernel_facts.").value();
  const std::string folder = parent.path() + "/made";
  ASSERT_TRUE(MakeDirectories(folder).ok());
  ASSERT_TRUE(WriteFileAtomically(folder + "/kdat-earlier-boot-1-2", "x").ok());
  const struct timespec before = KnownSince();
  const auto path = LearnKernel(criu->command, folder);
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(ListDirectory(folder).value(), ElementsAre(path->substr(folder.size() + 1)));
  EXPECT_GT(ReadFile(*path)->size(), 64u);
  EXPECT_EQ(KnownSince().tv_sec, before.tv_sec);
  EXPECT_EQ(KnownSince().tv_nsec, before.tv_nsec);

  // It is not asked again.
  ASSERT_TRUE(WriteFileAtomically(*path, "known").ok());
  EXPECT_EQ(*LearnKernel(criu->command, folder), *path);
  EXPECT_EQ(*ReadFile(*path), "known");
}

TEST_P(KernelFactsTest, ACriuThatIsNoneIsNamed) {
  const TemporaryDirectory folder = TemporaryDirectory::Make(GetParam(), "rk_kernel_facts.").value();
  EXPECT_TRUE(absl::IsNotFound(LearnKernel({folder.path() + "/criu"}, folder.path()).status()));
  const absl::Status status = LearnKernel({"/bin/false"}, folder.path()).status();
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("exit status 1"));
  EXPECT_THAT(ListDirectory(folder.path()).value(), testing::IsEmpty());
}

}  // namespace
}  // namespace rekindle::criu
