#include "restore/touched_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "dedup_store/store.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kFile = uint64_t{1} << 61,
                   kExclusive = uint64_t{1} << 56;

TEST(TouchedPagesTest, MakesRangesOfAKind) {
  TouchedPages touched;
  AddTouchedPages(0x10000, {kPresent | kExclusive, kPresent | kExclusive, kPresent, 0, kPresent | kFile},
                  &touched);
  EXPECT_THAT(touched.ranges, ElementsAre(0x10000, 0x12000 | 1, 0x14000, 0x15000));
  EXPECT_EQ(touched.own_bytes, 2 * kPageSize);
  // It goes on where the first piece ended, in the same kind and in the other.
  AddTouchedPages(0x15000, {kPresent | kFile | kExclusive, kPresent | kExclusive}, &touched);
  EXPECT_THAT(touched.ranges, ElementsAre(0x10000, 0x12000 | 1, 0x14000, 0x16000, 0x16000, 0x17000 | 1));
  EXPECT_EQ(touched.own_bytes, 3 * kPageSize);
}

TEST(TouchedPagesTest, LeavesOutWhatIsNotThere) {
  TouchedPages touched;
  AddTouchedPages(0x10000, {0, kSwapped | kExclusive, kPresent}, &touched);
  EXPECT_THAT(touched.ranges, IsEmpty());
  EXPECT_EQ(touched.own_bytes, 0u);
}

// Of a real child, which writes to two of its parent's pages.
TEST(TouchedPagesTest, FindsWhatAChildHasWritten) {
  constexpr size_t kPages = 8;
  auto* memory = static_cast<char*>(
      ::mmap(nullptr, kPages * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(::madvise(memory, kPages * kPageSize, MADV_NOHUGEPAGE), 0);
  std::memset(memory, 1, kPages * kPageSize);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    memory[2 * kPageSize] = 2;
    memory[3 * kPageSize] = 2;
    if (::write(pipe[1], "x", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char done;
  ASSERT_EQ(::read(pipe[0], &done, 1), 1);
  absl::StatusOr<TouchedPages> touched = FindTouchedPages(child);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(touched.ok()) << touched.status();
  EXPECT_TRUE(touched->whole);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  std::vector<uint64_t> within;
  for (size_t i = 0; i < touched->ranges.size(); i += 2) {
    const uint64_t start = touched->ranges[i], end = touched->ranges[i + 1];
    if ((end & ~uint64_t{1}) <= begin || start >= begin + kPages * kPageSize) continue;
    within.push_back(start - begin);
    within.push_back(end - begin);
  }
  EXPECT_THAT(within, ElementsAre(2 * kPageSize, (4 * kPageSize) | 1));
  absl::StatusOr<UniqueFd> list = MakeTouchList(*touched);
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<uint64_t> read(touched->ranges.size() + 1);
  EXPECT_EQ(::pread(list->get(), read.data(), read.size() * sizeof read[0], 0),
            static_cast<ssize_t>(touched->ranges.size() * sizeof read[0]));
  read.pop_back();
  EXPECT_EQ(read, touched->ranges);
  EXPECT_LT(::pwrite(list->get(), "x", 1, 0), 0) << "a copy could change it for others";
  ::munmap(memory, kPages * kPageSize);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(TouchedPagesTest, AProcessThatIsGone) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(FindTouchedPages(child).ok()) << "it is a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(FindTouchedPages(child).ok());
}

// Whoever takes a part for the whole makes copies that fault for the rest, one page after the other, for
// good.
TEST(TouchedPagesTest, OneThatEndsMeanwhileHasToldOnlyAPart) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  int visited = 0;
  const auto any = [](const TouchedArea&) { return true; };
  const absl::Status status = VisitTouchedAreas(child, any, [&](const TouchedArea&, const TouchedPages&) {
    if (++visited > 1) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  });
  EXPECT_GT(visited, 0);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

}  // namespace
}  // namespace rekindle::restore
