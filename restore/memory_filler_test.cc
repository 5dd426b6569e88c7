#include "restore/memory_filler.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/huge_pages.h"
#include "base/test_child.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using store::kMiB;
using store::kPageSize;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kFirstBlock = 0x7f0000000000;  // a multiple of the size of a huge page

store::PageRun PagesAt(uint64_t address, uint64_t bytes, bool zero = false) {
  return {address, bytes / kPageSize, zero};
}

TEST(BlocksWorthAHugePageTest, NineTenthsOfAnAlignedBlock) {
  auto blocks = [](std::vector<AddressRange> areas, std::vector<store::PageRun> pages) {
    std::vector<uint64_t> found;
    for (uint64_t block : BlocksWorthAHugePage(areas, pages)) found.push_back((block - kFirstBlock) / kMiB);
    return found;
  };
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 6 * kMiB}}, {PagesAt(kFirstBlock, 6 * kMiB)}),
              ElementsAre(0, 2, 4));
  EXPECT_THAT(blocks({{kFirstBlock + kMiB, kFirstBlock + 5 * kMiB}}, {PagesAt(kFirstBlock, 6 * kMiB)}),
              ElementsAre(2));
  EXPECT_THAT(blocks({{kFirstBlock + kMiB, kFirstBlock + 3 * kMiB}}, {PagesAt(kFirstBlock + kMiB, 2 * kMiB)}),
              IsEmpty());
  // A block is judged by itself: the second holds too little.
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 6 * kMiB}},
                     {PagesAt(kFirstBlock, 2 * kMiB), PagesAt(kFirstBlock + 4 * kMiB, 1900 * 1024)}),
              ElementsAre(0, 4));
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 2 * kMiB}}, {PagesAt(kFirstBlock, 1800 * 1024)}),
              IsEmpty());
  // In two pieces, and with zero pages, which are not written and would only take room.
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 2 * kMiB}},
                     {PagesAt(kFirstBlock, kMiB), PagesAt(kFirstBlock + kMiB + kPageSize, kMiB - kPageSize)}),
              ElementsAre(0));
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 2 * kMiB}},
                     {PagesAt(kFirstBlock, kMiB), PagesAt(kFirstBlock + kMiB, kMiB, true)}),
              IsEmpty());
  // Several areas, with far gaps between runs.
  EXPECT_THAT(
      blocks({{kFirstBlock, kFirstBlock + 2 * kMiB}, {kFirstBlock + 900 * kMiB, kFirstBlock + 1000 * kMiB}},
             {PagesAt(kFirstBlock, 2 * kMiB), PagesAt(kFirstBlock + 500 * kMiB, 4 * kMiB),
              PagesAt(kFirstBlock + 990 * kMiB, 10 * kMiB)}),
      ElementsAre(0, 990, 992, 994, 996, 998));
  EXPECT_THAT(blocks({}, {PagesAt(kFirstBlock, 2 * kMiB)}), IsEmpty());
  EXPECT_THAT(blocks({{kFirstBlock, kFirstBlock + 2 * kMiB}}, {}), IsEmpty());
}

// What a machine with these prices makes the costs choose, for `blocks` blocks; gives the share of huge ones.
double ShareOfHuge(BackingCosts& costs, int blocks, double making, double huge_copy, double small_copy) {
  int huge = 0;
  for (int i = 0; i < blocks; ++i) {
    Backing backing = costs.Next();
    if (backing == Backing::kHuge) {
      costs.Made(making);
      ++huge;
    }
    costs.Copied(backing, kHugePageBytes, backing == Backing::kHuge ? huge_copy : small_copy);
  }
  return static_cast<double>(huge) / blocks;
}

TEST(BackingCostsTest, TheCheaperWayIsTakenAndTheOtherNowAndThen) {
  BackingCosts cheap_huge;
  double share = ShareOfHuge(cheap_huge, 1000, 100e-6, 150e-6, 900e-6);
  EXPECT_GT(share, 0.95);
  EXPECT_LT(share, 1.0);
  BackingCosts dear_huge;
  share = ShareOfHuge(dear_huge, 1000, 3000e-6, 150e-6, 900e-6);
  EXPECT_LT(share, 0.05);
  EXPECT_GT(share, 0.0);
}

TEST(BackingCostsTest, AChangeIsNoticed) {
  BackingCosts costs;
  ShareOfHuge(costs, 200, 3000e-6, 150e-6, 900e-6);
  EXPECT_GT(ShareOfHuge(costs, 1000, 100e-6, 150e-6, 900e-6), 0.7);
  EXPECT_LT(ShareOfHuge(costs, 1000, 3000e-6, 150e-6, 900e-6), 0.1);
}

TEST(BackingCostsTest, AThreadThatWaitedForAProcessorDecidesNothing) {
  constexpr double kWaited = 4e-3;
  constexpr size_t kSmallPiece = 4096;
  BackingCosts costs;
  costs.Copied(Backing::kSmall, kSmallPiece, kWaited);  // the very first one
  EXPECT_LT(ShareOfHuge(costs, 200, 4000e-6, 150e-6, 900e-6), 0.1);
  costs.Copied(Backing::kSmall, kSmallPiece, kWaited);
  EXPECT_LT(ShareOfHuge(costs, 200, 4000e-6, 150e-6, 900e-6), 0.1);
}

TEST(BackingCostsTest, WhatIsNotToBeHadIsGivenUp) {
  BackingCosts costs;
  for (int i = 0; i < 100; ++i) {
    if (costs.Next() == Backing::kHuge) costs.NotMade();
    costs.Copied(Backing::kSmall, kHugePageBytes, 1e-3);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(costs.Next(), Backing::kSmall);
}

class MemoryFillerTest : public testing::Test {
 protected:
  static constexpr uint64_t kBlocks = 8;
  static constexpr uint64_t kBytes = kBlocks * kHugePageBytes;

  void SetUp() override {
    char* mapped = static_cast<char*>(::mmap(nullptr, kBytes + 2 * kHugePageBytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(mapped, MAP_FAILED);
    mapped_ = mapped;
    base_ = (reinterpret_cast<uint64_t>(mapped) + kHugePageBytes) / kHugePageBytes * kHugePageBytes;
    content_.resize(kBytes);
    uint64_t word = 1;
    for (size_t i = 0; i + sizeof word <= kBytes; i += sizeof word) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(content_.data() + i, &word, sizeof word);
    }
  }
  void TearDown() override { ::munmap(mapped_, kBytes + 2 * kHugePageBytes); }

  std::vector<uint64_t> Blocks() const {
    std::vector<uint64_t> blocks;
    for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back(base_ + i * kHugePageBytes);
    return blocks;
  }
  absl::Span<const std::byte> Content(uint64_t offset, uint64_t bytes) const {
    return {reinterpret_cast<const std::byte*>(content_.data()) + offset, bytes};
  }
  std::string MemoryOf(pid_t pid) const {
    std::string bytes(kBytes, '?');
    iovec local{bytes.data(), bytes.size()}, remote{reinterpret_cast<void*>(base_), bytes.size()};
    return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(kBytes) ? bytes : "";
  }
  // In the memory that is filled; a sanitizer has huge pages of its own.
  bool HasHugePages(pid_t pid) const {
    const std::string smaps = ReadFile(absl::StrCat("/proc/", pid, "/smaps")).value_or("");
    bool ours = false;
    for (absl::string_view line : absl::StrSplit(smaps, '\n')) {
      unsigned long long start = 0, end = 0;
      if (sscanf(std::string(line).c_str(), "%llx-%llx ", &start, &end) == 2) {
        ours = start < base_ + kBytes && base_ < end;
      } else if (ours && absl::StartsWith(line, "AnonHugePages:") && !absl::StrContains(line, " 0 kB")) {
        return true;
      }
    }
    return false;
  }

  void* mapped_ = nullptr;
  uint64_t base_ = 0;
  std::string content_;
};

TEST_F(MemoryFillerTest, EveryPageArrivesFromSeveralThreadsInAnyPieces) {
  TestChild child;
  ASSERT_TRUE(child.prepared() && child.Stop());
  BackingCosts costs;
  MemoryFiller filler(child.pid(), Blocks(), &costs);
  // Pieces that begin and end within blocks and span them; threads meet in one block.
  constexpr uint64_t kPiece = 97 * kPageSize;
  std::atomic<uint64_t> next{0};
  std::atomic<int> failures{0};
  auto work = [&] {
    for (uint64_t at; (at = next.fetch_add(kPiece)) < kBytes;) {
      if (!filler.Write(base_ + at, Content(at, std::min(kPiece, kBytes - at))).ok()) ++failures;
    }
  };
  std::thread one(work), two(work);
  one.join();
  two.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(MemoryOf(child.pid()) == content_);
  if (HugePagesAllowed() && !HasHugePages(child.pid())) GTEST_SKIP() << "the kernel had no huge page to give";
}

TEST_F(MemoryFillerTest, NoHugePageOutsideTheBlocks) {
  TestChild child;
  ASSERT_TRUE(child.prepared() && child.Stop());
  BackingCosts costs;
  MemoryFiller filler(child.pid(), {}, &costs);
  ASSERT_TRUE(filler.Write(base_, Content(0, kBytes)).ok());
  EXPECT_TRUE(MemoryOf(child.pid()) == content_);
  EXPECT_FALSE(HasHugePages(child.pid()));
}

TEST_F(MemoryFillerTest, OnlyWhatIsWrittenChanges) {
  TestChild child([&] { return std::memset(reinterpret_cast<void*>(base_), 'o', kBytes) != nullptr; });
  ASSERT_TRUE(child.prepared() && child.Stop());
  BackingCosts costs;
  MemoryFiller filler(child.pid(), Blocks(), &costs);
  std::string expected(kBytes, 'o');
  for (uint64_t at : {3 * kPageSize, kHugePageBytes - kPageSize, 5 * kHugePageBytes}) {
    ASSERT_TRUE(filler.Write(base_ + at, Content(at, 2 * kPageSize)).ok());
    expected.replace(at, 2 * kPageSize, content_, at, 2 * kPageSize);
  }
  EXPECT_TRUE(MemoryOf(child.pid()) == expected);
}

TEST_F(MemoryFillerTest, AProcessThatWasKilledIsNamed) {
  TestChild child;
  ASSERT_TRUE(child.prepared());
  pid_t pid = child.pid();
  child.Kill();
  child.Reap();
  BackingCosts costs;
  MemoryFiller filler(pid, Blocks(), &costs);
  absl::Status status = filler.Write(base_, Content(0, kPageSize));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("process ", pid)));
}

}  // namespace
}  // namespace rekindle::restore
