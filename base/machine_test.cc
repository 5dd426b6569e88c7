#include "base/machine.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

constexpr uint64_t kKib = 1024;
constexpr char kMeminfo[] =
    "MemTotal:       24683656 kB\n"
    "MemAvailable:   19000000 kB\n"
    "CommitLimit:    12341828 kB\n"
    "Committed_AS:   12241828 kB\n"
    "HugePages_Total:       0\n";

TEST(MachineTest, WhatTheKernelStillPromisesCountsWhereItPromisesNoMoreThanItHas) {
  EXPECT_EQ(*AvailableMemoryIn(kMeminfo, "0\n"), 19000000 * kKib);
  EXPECT_EQ(*AvailableMemoryIn(kMeminfo, "1\n"), 19000000 * kKib);
  EXPECT_EQ(*AvailableMemoryIn(kMeminfo, ""), 19000000 * kKib);
  EXPECT_EQ(*AvailableMemoryIn(kMeminfo, "2\n"), 100000 * kKib);
  EXPECT_EQ(*AvailableMemoryIn("MemAvailable: 10 kB\nCommitLimit: 40 kB\nCommitted_AS: 10 kB\n", "2"),
            10 * kKib);
  EXPECT_EQ(*AvailableMemoryIn("MemAvailable: 10 kB\nCommitLimit: 40 kB\nCommitted_AS: 50 kB\n", "2"), 0u);
  EXPECT_FALSE(AvailableMemoryIn("CommitLimit: 40 kB\n", "2").ok());
  EXPECT_GT(*AvailableMemoryBytes(), 0u);
}

}  // namespace
}  // namespace rekindle
