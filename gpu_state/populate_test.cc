#include "gpu_state/populate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::gpu {
namespace {

constexpr uint64_t kFreshBlock = 2 << 20, kFreshBytes = 40 * kFreshBlock, kFreshPage = 4096;

// A process with fresh memory.
class PopulateTest : public testing::Test {
 protected:
  void Start(bool without_huge_pages) {
    // Shared with nobody once the child has it: nothing of it is there yet.
    void* place = ::mmap(nullptr, kFreshBytes + kFreshBlock, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(place, MAP_FAILED);
    area_ = place;
    memory_ = (reinterpret_cast<uint64_t>(place) + kFreshBlock - 1) / kFreshBlock * kFreshBlock;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    pid_ = ::fork();
    ASSERT_GE(pid_, 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (without_huge_pages) ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
      ::madvise(area_, kFreshBytes + kFreshBlock, MADV_HUGEPAGE);
      (void)!::write(ready[1], "", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  void TearDown() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::munmap(area_, kFreshBytes + kFreshBlock);
  }
  // How many pages of it are there.
  uint64_t Present() const {
    std::vector<uint64_t> entries(kFreshBytes / kFreshPage);
    const auto pagemap = OpenFile(absl::StrCat("/proc/", pid_, "/pagemap"), O_RDONLY);
    EXPECT_TRUE(pagemap.ok());
    const auto bytes = static_cast<ssize_t>(entries.size() * sizeof entries[0]);
    EXPECT_EQ(::pread(pagemap->get(), entries.data(), static_cast<size_t>(bytes),
                      static_cast<off_t>(memory_ / kFreshPage * sizeof entries[0])),
              bytes);
    uint64_t count = 0;
    for (uint64_t entry : entries) count += entry >> 63;
    return count;
  }

  void* area_ = nullptr;
  uint64_t memory_ = 0;
  pid_t pid_ = 0;
  std::atomic<bool> stop_{false};
};

TEST_F(PopulateTest, WholeBlocksOfHugePages) {
  ASSERT_NO_FATAL_FAILURE(Start(/*without_huge_pages=*/false));
  PopulateFresh(pid_, pid_, memory_, kFreshBytes, stop_);
  EXPECT_EQ(Present(), kFreshBytes / kFreshPage);
}

TEST_F(PopulateTest, WhereThereAreNoHugePagesTheSmallOnes) {
  ASSERT_NO_FATAL_FAILURE(Start(/*without_huge_pages=*/true));
  PopulateFresh(pid_, pid_, memory_, kFreshBytes, stop_);
  EXPECT_EQ(Present(), kFreshBytes / kFreshPage);
}

TEST_F(PopulateTest, NothingOnceItIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start(/*without_huge_pages=*/false));
  stop_ = true;
  PopulateFresh(pid_, pid_, memory_, kFreshBytes, stop_);
  EXPECT_EQ(Present(), 0U);
}

TEST_F(PopulateTest, NothingBesideIt) {
  ASSERT_NO_FATAL_FAILURE(Start(/*without_huge_pages=*/true));
  PopulateFresh(pid_, pid_, memory_ + 3 * kFreshBlock + kFreshPage, 2 * kFreshBlock, stop_);
  EXPECT_EQ(Present(), kFreshBlock / kFreshPage);
}

}  // namespace
}  // namespace rekindle::gpu
