#include "restore/missing_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace rekindle::restore {
namespace {

using store::kPageSize;

store::StoredRun StoredPages(uint64_t page, uint32_t pages, uint32_t frame = 0, bool zero = false) {
  store::StoredRun run;
  run.address = page * kPageSize;
  run.pages = pages;
  run.zero = zero;
  run.frame = {1, frame};
  return run;
}

std::shared_ptr<const TaskPages> Pages(std::vector<store::StoredRun> layout,
                                       std::vector<AddressRange> areas) {
  for (AddressRange& area : areas) area = {area.begin * kPageSize, area.end * kPageSize};
  return std::make_shared<const TaskPages>(layout, areas);
}

TEST(TaskPagesTest, KeepsWhatLiesInTheAreas) {
  auto pages = Pages(
      {StoredPages(10, 10, 1), StoredPages(20, 5, 2, true), StoredPages(25, 5, 3), StoredPages(40, 2, 4)},
      {{5, 12}, {15, 27}, {41, 50}});
  ASSERT_EQ(pages->runs().size(), 4u);
  EXPECT_EQ(pages->pages(), 2u + 5u + 2u + 1u);
  EXPECT_EQ(pages->runs()[1].address, 15 * kPageSize);
  EXPECT_EQ(pages->runs()[1].page_in_frame, 5u);
  EXPECT_EQ(pages->runs()[3].address, 41 * kPageSize);
  EXPECT_EQ(pages->FirstNumberOf(2), 7u);
  EXPECT_EQ(pages->FindRun(10 * kPageSize), 0u);
  EXPECT_EQ(pages->FindRun(12 * kPageSize), std::nullopt);
  EXPECT_EQ(pages->FindRun(22 * kPageSize), std::nullopt);  // zero
  EXPECT_EQ(pages->FindRun(26 * kPageSize), 2u);
  EXPECT_EQ(pages->RunOfNumber(0), 0u);
  EXPECT_EQ(pages->RunOfNumber(6), 1u);
  EXPECT_EQ(pages->RunOfNumber(7), 2u);
  EXPECT_EQ(pages->RunOfNumber(9), 3u);
}

TEST(MissingPagesTest, FollowsDiscardsAndMoves) {
  MissingPages missing(Pages({StoredPages(10, 10)}, {{0, 100}}));
  EXPECT_EQ(missing.NumberAt(12 * kPageSize), 2u);
  missing.Drop(10 * kPageSize, 12 * kPageSize);
  EXPECT_EQ(missing.missing(), 8u);
  EXPECT_FALSE(missing.Missing(1));
  EXPECT_TRUE(missing.Missing(2));
  missing.Move(14 * kPageSize, 50 * kPageSize, 4 * kPageSize);
  EXPECT_EQ(missing.NumberAt(14 * kPageSize), std::nullopt);
  EXPECT_EQ(missing.NumberAt(50 * kPageSize), 4u);
  EXPECT_EQ(missing.NumberAt(18 * kPageSize), 8u);
  EXPECT_EQ(missing.missing(), 8u);
  auto places = missing.PlacesOf(0);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2].address, 50 * kPageSize);
  EXPECT_EQ(places[2].first, 4u);
  EXPECT_EQ(places[2].pages, 4u);
  missing.Drop(50 * kPageSize, 51 * kPageSize);
  EXPECT_FALSE(missing.Missing(4));
}

TEST(MissingPagesTest, AChildHasItsOwn) {
  MissingPages parent(Pages({StoredPages(10, 10)}, {{0, 100}}));
  parent.Move(10 * kPageSize, 30 * kPageSize, 10 * kPageSize);
  MissingPages child(parent);
  parent.Take(0);
  EXPECT_TRUE(child.Missing(0));
  EXPECT_EQ(child.NumberAt(31 * kPageSize), 1u);
  child.Drop(0, 100 * kPageSize);
  EXPECT_EQ(child.missing(), 0u);
  EXPECT_EQ(parent.missing(), 9u);
}

// Against a plain model: which image page is at each address, and which are missing.
TEST(MissingPagesTest, AgreesWithAModel) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    constexpr uint64_t kSpace = 64;
    std::vector<store::StoredRun> layout;
    for (uint32_t page = 0; page < kSpace;) {
      const uint32_t length = 1 + static_cast<uint32_t>(random() % 6);
      if (random() % 3 != 0) layout.push_back(StoredPages(page, length));
      page += length + static_cast<uint32_t>(random() % 2);
    }
    const uint64_t border = 1 + random() % (kSpace - 1);
    auto pages = Pages(layout, {{0, border}, {border, kSpace}});
    MissingPages missing(pages);
    std::vector<int> at(2 * kSpace + 8, -1);
    std::vector<bool> there(pages->pages(), false);
    for (uint64_t page = 0; page < at.size(); ++page) {
      if (auto number = missing.NumberAt(page * kPageSize)) at[page] = static_cast<int>(*number);
    }
    for (int step = 0; step < 30; ++step) {
      const uint64_t from = random() % kSpace, length = 1 + random() % 12;
      if (random() % 2 == 0) {
        missing.Drop(from * kPageSize, (from + length) * kPageSize);
        for (uint64_t i = from; i < from + length; ++i) {
          if (at[i] >= 0) there[static_cast<size_t>(at[i])] = true;
        }
      } else {
        const uint64_t to = random() % (2 * kSpace - 12);
        if (from < to + length && to < from + length) continue;  // the kernel refuses it
        missing.Move(from * kPageSize, to * kPageSize, length * kPageSize);
        for (uint64_t i = 0; i < length; ++i) {
          if (at[to + i] >= 0) there[static_cast<size_t>(at[to + i])] = true;
          at[to + i] = at[from + i];
          at[from + i] = -1;
        }
      }
      for (uint64_t page = 0; page < at.size(); ++page) {
        auto number = missing.NumberAt(page * kPageSize);
        ASSERT_EQ(number ? static_cast<int>(*number) : -1, at[page]) << round << " " << step << " " << page;
      }
      for (size_t number = 0; number < there.size(); ++number)
        ASSERT_EQ(missing.Missing(number), !there[number]);
      const auto ranges = missing.Ranges();
      const uint64_t first = random() % at.size(), last = first + random() % 8;
      bool any = false;
      for (uint64_t page = 0; page < at.size(); ++page) {
        const bool covered = std::any_of(ranges.begin(), ranges.end(), [&](const AddressRange& range) {
          return range.begin <= page * kPageSize && page * kPageSize < range.end;
        });
        if (at[page] < 0) continue;
        ASSERT_TRUE(covered) << round << " " << step << " " << page;
        any |= page >= first && page < last && !there[static_cast<size_t>(at[page])];
      }
      ASSERT_EQ(missing.AnyMissing(first * kPageSize, last * kPageSize), any) << round << " " << step;
    }
    for (size_t run = 0; run < pages->runs().size(); ++run) {
      for (const auto& place : missing.PlacesOf(run)) {
        for (uint32_t i = 0; i < place.pages; ++i) {
          EXPECT_EQ(missing.NumberAt(place.address + i * kPageSize),
                    pages->FirstNumberOf(run) + place.first + i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rekindle::restore
