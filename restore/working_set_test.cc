#include "restore/working_set.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/sanitized.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;
using store::PageRun;

constexpr uint64_t kAt = 0x7f0000000000;
uint64_t Page(uint64_t number) { return kAt + number * kPageSize; }

// Page by page, as a model to hold the real ones against.
using Pages = std::vector<std::pair<std::string, uint64_t>>;

Pages Expand(const WorkingSet& set) {
  Pages pages;
  for (const TouchedRun& run : set.runs) {
    for (uint64_t i = 0; i < run.pages; ++i) {
      pages.push_back({set.objects[run.object], run.address + i * kPageSize});
    }
  }
  return pages;
}

WorkingSet Record(const Pages& pages) {
  WorkingSetRecorder recorder;
  for (const auto& [object, address] : pages) recorder.Add(object, address, 1);
  return recorder.Take();
}

Pages Random(uint32_t seed, size_t count, uint64_t range) {
  std::mt19937 random(seed);
  Pages pages;
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    at = random() % 3 == 0 ? random() % range : (at + 1) % range;
    pages.push_back({random() % 5 == 0 ? "pages-2" : "pages-1", Page(at)});
  }
  return pages;
}

// The first time of each.
Pages Firsts(const Pages& pages) {
  std::set<std::pair<std::string, uint64_t>> seen;
  Pages firsts;
  for (const auto& page : pages) {
    if (seen.insert(page).second) firsts.push_back(page);
  }
  return firsts;
}

void ExpectComesBack(const WorkingSet& set) {
  auto back = WorkingSet::Decode(set.Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, set);
}

TEST(WorkingSet, KeepsTheOrderOfFirstTouches) {
  WorkingSetRecorder recorder;
  recorder.Add("b", Page(10), 2);
  recorder.Add("a", Page(3), 1);
  recorder.Add("a", Page(4), 1);
  recorder.Add("b", Page(8), 6);  // of which 10 and 11 are there
  recorder.Add("a", Page(3), 2);
  const WorkingSet set = recorder.Take();
  EXPECT_EQ(set.objects, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(set.runs, (std::vector<TouchedRun>{
                          {0, Page(10), 2, 1}, {1, Page(3), 2, 1}, {0, Page(8), 2, 1}, {0, Page(12), 2, 1}}));
  EXPECT_EQ(set.pages(), 8u);
  EXPECT_EQ(set.recordings, 1u);
  ExpectComesBack(set);
  EXPECT_TRUE(recorder.Take().empty());
}

TEST(WorkingSet, KnowsWhenItWasRecorded) {
  WorkingSet older = Record({{"a", Page(1)}}), newer = Record({{"a", Page(2)}});
  older.recorded_unix_ns = 1'700'000'000'123'456'789;
  newer.recorded_unix_ns = older.recorded_unix_ns + 5;
  ExpectComesBack(older);
  EXPECT_EQ(Merge(older, newer).recorded_unix_ns, newer.recorded_unix_ns);
  EXPECT_EQ(Clip(older,
                 [](absl::string_view) {
                   return std::vector<PageRun>{{Page(1), 1}};
                 })
                .recorded_unix_ns,
            older.recorded_unix_ns);
  // Those of before times were kept are read as well.
  older.recorded_unix_ns = 0;
  EXPECT_EQ(older.Encode()[4], 1);
  ExpectComesBack(older);
}

TEST(WorkingSet, KnowsWhatItsLastRecordingEndedWith) {
  WorkingSet older = Record({{"a", Page(1)}}), newer = Record({{"a", Page(2)}});
  older.recorded_unix_ns = newer.recorded_unix_ns = 1'700'000'000'123'456'789;
  // Those of before it was kept are read as well.
  EXPECT_EQ(older.Encode()[4], 2);
  ExpectComesBack(older);
  older.end = RecordingEnd::kTime;
  newer.end = RecordingEnd::kAnswered;
  ExpectComesBack(older);
  EXPECT_EQ(Merge(older, newer).end, RecordingEnd::kAnswered);
  EXPECT_EQ(Clip(older,
                 [](absl::string_view) {
                   return std::vector<PageRun>{{Page(1), 1}};
                 })
                .end,
            RecordingEnd::kTime);
  std::string bytes = older.Encode();
  const size_t at = 4 + 1 + 1 + 9;  // behind magic, version, recordings and a time of nine bytes
  ASSERT_EQ(bytes[at], static_cast<char>(RecordingEnd::kTime));
  for (char wrong : {0, 5}) {
    bytes[at] = wrong;
    EXPECT_EQ(WorkingSet::Decode(bytes).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(WorkingSet, IsAsAPageByPageModelHasIt) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Pages a = Random(seed, 300, 150), b = Random(seed + 100, 300, 150);
    const WorkingSet older = Record(a), newer = Record(b);
    EXPECT_EQ(Expand(older), Firsts(a));
    ExpectComesBack(older);
    const WorkingSet merged = Merge(older, newer);
    Pages both = b;
    both.insert(both.end(), a.begin(), a.end());
    std::set<std::pair<std::string, uint64_t>> in_a(a.begin(), a.end()), in_b(b.begin(), b.end());
    Pages expected;
    for (const auto& [object, address] : Firsts(both)) expected.push_back({object, address});
    // Firsts of a come in the order of its runs, which is that of its first touches.
    EXPECT_EQ(Expand(merged), expected);
    EXPECT_EQ(merged.recordings, 2u);
    for (const TouchedRun& run : merged.runs) {
      const std::pair<std::string, uint64_t> page{merged.objects[run.object], run.address};
      EXPECT_EQ(run.recent, (in_b.contains(page) ? 1 : 0) | (in_a.contains(page) ? 2 : 0));
    }
    ExpectComesBack(merged);
  }
}

TEST(WorkingSet, WhatNoRecentRecordingTouchedIsLeftOut) {
  WorkingSet set = Record({{"a", Page(1)}, {"a", Page(2)}});
  const WorkingSet again = Record({{"a", Page(2)}});
  for (uint32_t i = 1; i < WorkingSet::kRecordingsRemembered; ++i) {
    set = Merge(set, again);
    EXPECT_EQ(set.pages(), 2u) << i;
  }
  set = Merge(set, again);
  EXPECT_EQ(set.runs, (std::vector<TouchedRun>{{0, Page(2), 1, 0xff}}));
  EXPECT_EQ(set.recordings, 9u);
  EXPECT_EQ(Merge(WorkingSet(), again), again);
}

TEST(WorkingSet, ScatteredPagesTakeLittleRoom) {
  // 40 MB of a 4 GiB heap.
  std::mt19937 random(1);
  Pages pages;
  for (int i = 0; i < 10000; ++i) pages.push_back({"pages-1", Page(random() % (uint64_t{1} << 20))});
  const WorkingSet set = Record(pages);
  EXPECT_LT(set.Encode().size(), 60000u);
  ExpectComesBack(set);
  const WorkingSet merged = Merge(set, Record(Random(5, 5000, uint64_t{1} << 20)));
  EXPECT_LT(merged.Encode().size(), 90000u);
  ExpectComesBack(merged);
}

TEST(WorkingSet, IsClippedToWhatTheImageHas) {
  WorkingSetRecorder recorder;
  recorder.Add("a", Page(0), 100);
  recorder.Add("gone", Page(0), 5);
  recorder.Add("b", Page(7), 1);
  const WorkingSet set = Clip(recorder.Take(), [](absl::string_view object) -> std::vector<PageRun> {
    if (object == "a") return {{Page(10), 5, false}, {Page(15), 1, true}, {Page(90), 50, false}};
    if (object == "b") return {{Page(0), 20, false}};
    return {};
  });
  EXPECT_EQ(set.objects, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(set.runs,
            (std::vector<TouchedRun>{{0, Page(10), 6, 1}, {0, Page(90), 10, 1}, {1, Page(7), 1, 1}}));
  EXPECT_EQ(set.recordings, 1u);
}

TEST(WorkingSet, LongRunsAndHighAddressesComeBack) {
  WorkingSetRecorder recorder;
  recorder.Add("a", Page(0), (uint64_t{1} << 33) + 5);
  recorder.Add("a", uint64_t{0} - kPageSize, 1);
  recorder.Add("a", 0, 1);
  const WorkingSet set = recorder.Take();
  EXPECT_EQ(set.pages(), (uint64_t{1} << 33) + 7);
  ExpectComesBack(set);
  ExpectComesBack(WorkingSet());
}

TEST(WorkingSet, OddBytesAreRefusedOrMeanWhatTheySay) {
  WorkingSet set = Merge(Record(Random(1, 60, 40)), Record(Random(2, 60, 40)));
  const std::string bytes = set.Encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(WorkingSet::Decode(bytes.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(WorkingSet::Decode(bytes + '\0').status()));
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < (kSanitized ? 4000 : 20000); ++i) {
    std::string odd = bytes;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      odd[random() % odd.size()] = static_cast<char>(random());
    }
    auto decoded = WorkingSet::Decode(odd);
    if (!decoded.ok()) {
      ++refused;
      EXPECT_TRUE(absl::IsDataLoss(decoded.status()) || absl::IsFailedPrecondition(decoded.status()));
      continue;
    }
    EXPECT_EQ(decoded->Encode(), odd);
    const Pages pages = decoded->pages() < 100000 ? Expand(*decoded) : Pages();
    EXPECT_EQ(std::set(pages.begin(), pages.end()).size(), pages.size());
    for (const TouchedRun& run : decoded->runs) EXPECT_LT(run.object, decoded->objects.size());
  }
  EXPECT_GT(refused, kSanitized ? 200 : 1000);
}

TEST(WorkingSet, EachOddityIsRefused) {
  const std::string head(
      "RKWS\x01\x01\x01\x01"
      "a",
      9);
  auto decode = [&](const std::string& runs) { return WorkingSet::Decode(head + runs).status(); };
  // One run of one page, same object, same recent.
  EXPECT_TRUE(decode(std::string("\x01\x07\x02", 3)).ok());
  for (const std::string& runs : {
           std::string("\x01\x03\x02", 3),          // no pages
           std::string("\x01\x06\x01\x02", 4),      // no such object
           std::string("\x01\x05\x00\x02", 4),      // touched by no recording
           std::string("\x01\x05\x01\x02", 4),      // says again what is so already
           std::string("\x01\x07\x01", 3),          // before the first page
           std::string("\x02\x07\x02\x07\x01", 5),  // the same page twice
           std::string("\x02\x07\x02\x07\x00", 5),  // one run in two
           std::string("\x01\x87\x00\x02", 4),      // a number written too long
           std::string("\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 9),
           std::string("\x00", 1),  // a name without a run
       }) {
    EXPECT_TRUE(absl::IsDataLoss(decode(runs))) << testing::PrintToString(runs);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(WorkingSet::Decode(std::string("RKWS\x04", 5)).status()));
}

}  // namespace
}  // namespace rekindle::restore
