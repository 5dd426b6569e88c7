#include "restore/pager_record.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/packet_socket.h"

namespace rekindle::restore {
namespace {

const Span* Find(const Timeline& timeline, const std::string& name) {
  auto found = std::find_if(timeline.begin(), timeline.end(), [&](const Span& s) { return s.name == name; });
  return found == timeline.end() ? nullptr : &*found;
}

TEST(PagerRecordTest, WhatIsAddedComesBack) {
  PagerRecord record(/*wanted=*/true);
  const int64_t begin = MonotonicNanos();
  record.Add("work", "attach", begin, {{"pages", 17}});
  record.JobRuns();
  record.AddFault({begin, 0x7fff00001000, 8, true});
  record.AddFault({begin, 0x7fff00002000, 0, false});
  auto timeline = PagerRecord::Decode(record.Encode({{"faults", 2}}));
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  ASSERT_EQ(timeline->size(), 4);
  const Span* attach = Find(*timeline, "attach");
  ASSERT_NE(attach, nullptr);
  EXPECT_EQ(attach->process, "pager");
  EXPECT_EQ(attach->thread, "work");
  EXPECT_EQ(attach->begin_ns, begin);
  EXPECT_EQ(attach->numbers.at("pages"), 17);
  const Span* fault = Find(*timeline, "fault");
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->numbers,
            (std::map<std::string, int64_t>{{"address", 0x7fff00001000}, {"pages", 8}, {"loaded", 1}}));
  ASSERT_NE(Find(*timeline, "zero fault"), nullptr);
  const Span* serving = Find(*timeline, "serving");
  ASSERT_NE(serving, nullptr);
  EXPECT_GE(serving->begin_ns, attach->end_ns());
  EXPECT_EQ(serving->numbers, (std::map<std::string, int64_t>{{"faults", 2}}));
}

TEST(PagerRecordTest, NothingIsKeptThatNobodyWants) {
  PagerRecord record(/*wanted=*/false);
  record.Add("work", "attach", MonotonicNanos());
  record.JobRuns();
  record.AddFault({MonotonicNanos(), 0x1000, 1, false});
  auto timeline = PagerRecord::Decode(record.Encode({{"faults", 1}}));
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_TRUE(timeline->empty());
}

TEST(PagerRecordTest, ManyFaultsFitIntoAPacket) {
  PagerRecord record(/*wanted=*/true);
  record.JobRuns();
  const int64_t begin = MonotonicNanos();
  for (size_t i = 0; i < PagerRecord::kMostFaults + 5; ++i) {
    record.AddFault({begin, 0x7fff'ffff'f000, 8, true});
  }
  const std::string encoded = record.Encode({});
  EXPECT_LE(encoded.size(), kMaxPacketBytes);
  auto timeline = PagerRecord::Decode(encoded);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->size(), PagerRecord::kMostFaults + 1);
  EXPECT_EQ(Find(*timeline, "serving")->numbers.at("faults_not_shown"), 5);
}

TEST(PagerRecordTest, NonsenseIsRefused) {
  for (const char* text :
       {"", "{", "{}", R"({"spans":[],"faults":[[1,2]]})", R"({"spans":[[1]],"faults":[]})"}) {
    EXPECT_EQ(PagerRecord::Decode(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace rekindle::restore
