#include "restore/fill_from_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <random>
#include <string>

#include "absl/synchronization/mutex.h"
#include "dedup_store/store_testing.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kOnePage = store::kPageSize;
constexpr uint64_t kBetweenPieces = 0x7000'0000'0000 + 3 * kOnePage;  // at no border of pieces
constexpr uint64_t kFilledPages = 2000;

// Random parts of it are wanted, random parts are there, and of these random pages are gone.
TEST(FillFromMemoryTest, EachPageOnceFromMemoryOrLeft) {
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kFilledPages * kOnePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    enum Page { kUnwanted, kElsewhere, kThere, kGone };
    std::vector<Page> expected(kFilledPages);
    std::vector<store::PagesInMemory> pages;
    std::vector<store::PageRun> ranges;
    auto cut = [&](auto&& add) {
      for (uint64_t at = random() % 50; at < kFilledPages;) {
        const uint64_t count = std::min<uint64_t>(1 + random() % 700, kFilledPages - at);
        add(at, count);
        at += count + (random() % 3 == 0 ? 0 : random() % 50);
      }
    };
    cut([&](uint64_t at, uint64_t count) {
      ranges.push_back({kBetweenPieces + at * kOnePage, count, false});
      for (uint64_t i = at; i < at + count; ++i) expected[i] = kElsewhere;
    });
    ASSERT_EQ(::madvise(memory, kFilledPages * kOnePage, MADV_DONTNEED), 0);
    cut([&](uint64_t at, uint64_t count) {
      pages.push_back({kBetweenPieces + at * kOnePage, {memory + at * kOnePage, count * kOnePage}});
      for (uint64_t i = at; i < at + count; ++i) {
        const bool gone = random() % 8 == 0;
        if (!gone) memset(memory + i * kOnePage, static_cast<int>(1 + i % 255), kOnePage);
        if (expected[i] != kUnwanted) expected[i] = gone ? kGone : kThere;
      }
    });
    absl::Mutex mutex;
    std::vector<int> got(kFilledPages), left(kFilledPages);
    auto rest = FillFromMemory(pages, ranges, [&](uint64_t address, absl::Span<const std::byte> bytes) {
      absl::MutexLock lock(&mutex);
      for (uint64_t at = 0; at < bytes.size(); at += kOnePage) {
        const uint64_t page = (address + at - kBetweenPieces) / kOnePage;
        EXPECT_EQ(bytes[at + 5], std::byte(1 + page % 255));
        ++got[page];
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(rest.ok()) << rest.status();
    uint64_t end = 0;
    for (const store::PageRun& run : *rest) {
      EXPECT_GE(run.address, end);
      end = run.address + run.pages * kOnePage;
      for (uint64_t i = 0; i < run.pages; ++i) ++left[(run.address - kBetweenPieces) / kOnePage + i];
    }
    for (uint64_t i = 0; i < kFilledPages; ++i) {
      EXPECT_EQ(got[i] + left[i], expected[i] == kUnwanted ? 0 : 1) << i;
      if (expected[i] == kElsewhere || expected[i] == kGone) {
        EXPECT_EQ(left[i], 1) << i;
      }
    }
  }
  ::munmap(memory, kFilledPages * kOnePage);
}

TEST(FillFromMemoryTest, ErrorOfTheSinkIsTheResult) {
  const std::string bytes = store::MakePages(2, 1);
  alignas(4096) static std::byte memory[2 * kOnePage];
  memcpy(memory, bytes.data(), sizeof memory);
  auto rest =
      FillFromMemory({{kBetweenPieces, {memory, sizeof memory}}}, {{kBetweenPieces, 2, false}},
                     [](uint64_t, absl::Span<const std::byte>) { return absl::NotFoundError("gone"); });
  EXPECT_EQ(rest.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace rekindle::restore
