#include "restore/prefill_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dedup_store/store_testing.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using store::StatusOf;

class PrefillSetTest : public store::StoreTest {
 protected:
  static constexpr size_t kPages = 300;

  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    memory_ = store::MakePages(kPages, 1);
    store::TestImage image;
    image.objects["m"][kBase] = memory_;
    RK_ASSERT_OK(image.Commit(*store_, "image"));
    auto reader = store_->OpenImage("image");
    RK_ASSERT_OK(reader);
    reader_ = *std::move(reader);
    auto layout = reader_->Layout("m");
    RK_ASSERT_OK(layout);
    layout_ = *std::move(layout);
    auto cache = FrameCache::Make({16 * SlabPool::kSlabBytes});
    RK_ASSERT_OK(cache);
    cache_ = *std::move(cache);
  }

  // Of process `pid`, whose pages are numbered as they lie in the object.
  PrefillSource SourceOf(size_t page, pid_t pid = 7) const {
    const uint64_t address = kBase + page * kPageSize;
    auto run = std::find_if(layout_.begin(), layout_.end(), [&](const store::StoredRun& r) {
      return r.address <= address && address < r.address + uint64_t{r.pages} * kPageSize;
    });
    EXPECT_NE(run, layout_.end());
    const auto within = static_cast<uint32_t>((address - run->address) / kPageSize);
    return {run->frame, run->page_in_frame + within, 1, pid, address, page};
  }
  bool Has(const PrefillSet::Piece& piece) const {
    return memcmp(piece.bytes, memory_.data() + (piece.address - kBase), piece.pages * kPageSize) == 0;
  }

  static constexpr uint64_t kBase = 0x40000000;
  std::string memory_;
  std::unique_ptr<store::ImageReader> reader_;
  std::vector<store::StoredRun> layout_;
  std::unique_ptr<FrameCache> cache_;
};

TEST_F(PrefillSetTest, NeighboursAreOnePieceWhateverOrderTheyComeIn) {
  std::vector<PrefillSource> sources;
  for (size_t page : {5u, 200u, 4u, 6u, 201u, 130u}) sources.push_back(SourceOf(page));
  EXPECT_EQ(PrefillSet::BytesOf(sources, {}), 6 * kPageSize);
  auto set = PrefillSet::Make(*reader_, *cache_, sources, {});
  RK_ASSERT_OK(set);
  ASSERT_EQ((*set)->working_set().size(), 3u);
  EXPECT_TRUE((*set)->written().empty());
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{4, 3}, {130, 1}, {200, 2}};
  for (size_t i = 0; i < expected.size(); ++i) {
    const PrefillSet::Piece& piece = (*set)->working_set()[i];
    EXPECT_EQ(piece.pid, 7);
    EXPECT_EQ(piece.number, expected[i].first);
    EXPECT_EQ(piece.address, kBase + expected[i].first * kPageSize);
    EXPECT_EQ(piece.pages, expected[i].second);
    EXPECT_TRUE(Has(piece)) << i;
  }
}

TEST_F(PrefillSetTest, FindsPagesByTheirNumbers) {
  std::vector<PrefillSource> sources;
  for (size_t page : {4u, 5u, 6u, 130u}) sources.push_back(SourceOf(page, 7));
  for (size_t page : {5u, 200u}) sources.push_back(SourceOf(page, 9));
  auto set = PrefillSet::Make(*reader_, *cache_, sources, {SourceOf(150, 7)});
  RK_ASSERT_OK(set);
  const std::map<std::pair<pid_t, size_t>, uint64_t> pages_from = {{{7, 4}, 3},   {{7, 5}, 2}, {{7, 6}, 1},
                                                                   {{7, 130}, 1}, {{9, 5}, 1}, {{9, 200}, 1}};
  for (pid_t pid : {6, 7, 8, 9, 10}) {
    for (size_t page = 0; page < kPages; ++page) {
      const PrefillSet::Found found = (*set)->Find(pid, page);
      auto expected = pages_from.find({pid, page});
      ASSERT_EQ(found.pages, expected == pages_from.end() ? 0 : expected->second) << pid << " " << page;
      if (found.pages == 0) continue;
      EXPECT_EQ(memcmp(found.bytes, memory_.data() + page * kPageSize, found.pages * kPageSize), 0);
    }
  }
}

TEST_F(PrefillSetTest, ProcessesAndNumbersAreNotMixed) {
  std::vector<PrefillSource> sources = {SourceOf(10, 7), SourceOf(11, 8), SourceOf(12, 8)};
  sources[2].number = 40;  // next to it in memory, but another page of the task follows in number
  auto set = PrefillSet::Make(*reader_, *cache_, sources, {});
  RK_ASSERT_OK(set);
  ASSERT_EQ((*set)->working_set().size(), 3u);
  EXPECT_EQ((*set)->working_set()[0].pid, 7);
  EXPECT_EQ((*set)->working_set()[1].number, 11u);
  EXPECT_EQ((*set)->working_set()[2].number, 40u);
}

TEST_F(PrefillSetTest, WhatIsWrittenHasItsZeros) {
  std::vector<PrefillSource> written = {SourceOf(20), SourceOf(21)};
  PrefillSource zeros;
  zeros.pages = 2;
  zeros.pid = 7;
  zeros.address = kBase + 22 * kPageSize;
  written.push_back(zeros);
  for (PrefillSource& source : written) source.number = 0;
  auto set = PrefillSet::Make(*reader_, *cache_, {SourceOf(3)}, written);
  RK_ASSERT_OK(set);
  ASSERT_EQ((*set)->written().size(), 1u);
  const PrefillSet::Piece& piece = (*set)->written()[0];
  EXPECT_EQ(piece.pages, 4u);
  EXPECT_EQ(memcmp(piece.bytes, memory_.data() + 20 * kPageSize, 2 * kPageSize), 0);
  EXPECT_EQ(std::count(piece.bytes + 2 * kPageSize, piece.bytes + 4 * kPageSize, std::byte{0}),
            static_cast<ptrdiff_t>(2 * kPageSize));
  EXPECT_EQ((*set)->bytes(), 5 * kPageSize);
}

TEST_F(PrefillSetTest, ManyOfAllFrames) {
  std::mt19937 random(3);
  std::vector<size_t> pages;
  for (size_t page = 0; page < kPages; ++page) {
    if (random() % 3 == 0) pages.push_back(page);
  }
  std::shuffle(pages.begin(), pages.end(), random);
  std::vector<PrefillSource> sources;
  for (size_t page : pages) sources.push_back(SourceOf(page));
  auto set = PrefillSet::Make(*reader_, *cache_, sources, {});
  RK_ASSERT_OK(set);
  uint64_t found = 0;
  for (const PrefillSet::Piece& piece : (*set)->working_set()) {
    EXPECT_TRUE(Has(piece));
    found += piece.pages;
  }
  EXPECT_EQ(found, pages.size());
}

TEST_F(PrefillSetTest, WhatWasKeptIsLoadedWithoutTheCache) {
  std::vector<PrefillSource> sources, written;
  for (size_t page = 0; page < 250; page += 3) sources.push_back(SourceOf(page));
  for (size_t page = 251; page < 300; ++page) written.push_back(SourceOf(page));
  for (PrefillSource& source : written) source.number = 0;
  auto set = PrefillSet::Make(*reader_, *cache_, sources, written);
  RK_ASSERT_OK(set);
  Sha256Digest image, working_set;
  image.fill(1);
  working_set.fill(2);
  auto parts = (*set)->Keep(image, working_set, [] { return true; });
  RK_ASSERT_OK(parts);
  const std::vector<absl::string_view> views(parts->begin(), parts->end());
  RK_ASSERT_OK(store_->PutNote(reader_->info(), store::kWorkingSetPagesNote, views));
  auto note = store_->OpenNote(reader_->info().digest, store::kWorkingSetPagesNote);
  RK_ASSERT_OK(note);
  const uint64_t uses = cache_->Stats().hits + cache_->Stats().misses;
  auto loaded = PrefillSet::Load(**note, image, working_set, sources, written);
  RK_ASSERT_OK(loaded);
  EXPECT_EQ(cache_->Stats().hits + cache_->Stats().misses, uses);
  EXPECT_EQ((*loaded)->bytes(), (*set)->bytes());
  ASSERT_EQ((*loaded)->working_set().size(), (*set)->working_set().size());
  ASSERT_EQ((*loaded)->written().size(), 1u);
  for (size_t i = 0; i < (*set)->working_set().size(); ++i) {
    const PrefillSet::Piece& piece = (*loaded)->working_set()[i];
    EXPECT_TRUE(static_cast<const PrefillPlace&>(piece) == (*set)->working_set()[i]);
    EXPECT_TRUE(Has(piece)) << i;
  }
  EXPECT_TRUE(Has((*loaded)->written()[0]));
  sources.pop_back();
  EXPECT_TRUE(
      absl::IsFailedPrecondition(PrefillSet::Load(**note, image, working_set, sources, written).status()));
}

TEST_F(PrefillSetTest, NothingIsNoError) {
  auto set = PrefillSet::Make(*reader_, *cache_, {}, {});
  RK_ASSERT_OK(set);
  EXPECT_TRUE((*set)->working_set().empty());
}

}  // namespace
}  // namespace rekindle::restore
