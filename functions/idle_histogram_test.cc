#include "functions/idle_histogram.h"

#include <gtest/gtest.h>

#include "functions/trace_random.h"
#include "functions/units_for_tests.h"

namespace rekindle::functions {
namespace {

TEST(IdleHistogramTest, PredictsNothingBeforeThereAreSamples) {
  IdleHistogram histogram;
  for (int i = 0; i < 3; ++i) histogram.Record(30 * kMinute);
  EXPECT_FALSE(histogram.Predicted().has_value());
  histogram.Record(30 * kMinute);
  EXPECT_TRUE(histogram.Predicted().has_value());
}

TEST(IdleHistogramTest, WindowOfATimerHoldsItsPeriod) {
  for (int minutes : {3, 5, 15, 16, 30, 60, 480, 1440, 2880}) {
    IdleHistogram histogram;
    for (int i = 0; i < 10; ++i) histogram.Record(minutes * kMinute - 200'000);
    ASSERT_TRUE(histogram.Predicted().has_value()) << minutes;
    EXPECT_LT(histogram.Predicted()->open, minutes * kMinute - 200'000) << minutes;
    EXPECT_GT(histogram.Predicted()->close, minutes * kMinute) << minutes;
    EXPECT_LE(histogram.Predicted()->close - histogram.Predicted()->open, minutes * kMinute / 2 + 4 * kMinute)
        << minutes;
  }
}

TEST(IdleHistogramTest, WhatComesAtRandomIsNotPredicted) {
  IdleHistogram histogram;
  Random random(3);
  for (int i = 0; i < 200; ++i) histogram.Record(static_cast<Micros>(random.Exponential() * 60 * kMinute));
  EXPECT_FALSE(histogram.Predicted().has_value());
}

TEST(IdleHistogramTest, ANewPeriodReplacesTheOldOne) {
  IdleHistogram histogram;
  for (int i = 0; i < 100; ++i) histogram.Record(10 * kMinute);
  for (int i = 0; i < 500; ++i) histogram.Record(120 * kMinute);
  ASSERT_TRUE(histogram.Predicted().has_value());
  EXPECT_GT(histogram.Predicted()->open, 90 * kMinute);
}

TEST(IdleHistogramTest, TakesAnyTime) {
  IdleHistogram histogram;
  for (Micros idle : {Micros{-5}, Micros{0}, INT64_MAX, Micros{1}}) histogram.Record(idle);
  for (int i = 0; i < 100; ++i) histogram.Record(INT64_MAX);
  EXPECT_FALSE(histogram.Predicted().has_value());
}

}  // namespace
}  // namespace rekindle::functions
