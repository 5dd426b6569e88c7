#include "supervise/progress_watch.h"

#include <gtest/gtest.h>

namespace rekindle::supervise {
namespace {

constexpr double kHang = 60;

TEST(ProgressWatch, SoundUntilTheSampleBeforeTheLastSign) {
  ProgressWatch watch(10);
  watch.Restart(3);
  EXPECT_DOUBLE_EQ(watch.SoundUntilSeconds(), 3);
  ProgressSample sample;
  for (const double at : {4.0, 5.0, 6.0}) {
    sample.at_seconds = at;
    sample.cpu_seconds = at;
    watch.Add(sample);
  }
  EXPECT_DOUBLE_EQ(watch.SoundUntilSeconds(), 5);
  sample.at_seconds = 6.2;  // an image was taken
  watch.Rebase(sample, 0.2);
  sample.at_seconds = 7;
  watch.Add(sample);  // no sign
  EXPECT_DOUBLE_EQ(watch.SoundUntilSeconds(), 5);
  sample.at_seconds = 8;
  sample.cpu_seconds = 7;
  watch.Add(sample);
  EXPECT_DOUBLE_EQ(watch.SoundUntilSeconds(), 7);
}

TEST(ProgressWatch, AnImageIsNoSignAndNoQuietTime) {
  ProgressWatch watch(10);
  watch.Restart(0);
  ProgressSample sample;
  sample.at_seconds = 1;
  sample.cpu_seconds = 1;
  watch.Add(sample);  // the baseline
  sample.at_seconds = 9;
  sample.cpu_seconds = 3;
  sample.io_bytes = 1000;
  watch.Rebase(sample, 4);
  EXPECT_DOUBLE_EQ(watch.QuietSeconds(9), 5);
  EXPECT_FALSE(watch.Hangs(13.9));
  EXPECT_TRUE(watch.Hangs(14));
  sample.at_seconds = 15;
  sample.cpu_seconds = 4;
  watch.Add(sample);
  EXPECT_FALSE(watch.Hangs(15));
  sample.reported = 1;
  watch.Rebase(sample, 0);
  EXPECT_DOUBLE_EQ(watch.QuietSeconds(15), 0);
}

TEST(ProgressWatch, TimeInWhichItCanNotRunDoesNotCount) {
  ProgressWatch watch(10);
  watch.Restart(0);
  watch.Add({.at_seconds = 1, .cpu_seconds = 1});
  watch.Add({.at_seconds = 4, .cpu_seconds = 1});
  for (int i = 5; i <= 1000; ++i) {
    watch.Excuse({.at_seconds = static_cast<double>(i), .cpu_seconds = 1});
    EXPECT_FALSE(watch.Hangs(i));
  }
  EXPECT_DOUBLE_EQ(watch.QuietSeconds(1000), 4);
  watch.Add({.at_seconds = 1005, .cpu_seconds = 1});
  EXPECT_FALSE(watch.Hangs(1005));
  EXPECT_TRUE(watch.Hangs(1006));
  ProgressWatch at_once(10);
  at_once.Excuse({.at_seconds = 50});
  EXPECT_DOUBLE_EQ(at_once.QuietSeconds(55), 5);
}

TEST(ProgressWatch, NothingIsAHangWhenItIsNotWatched) {
  ProgressWatch watch(0);
  watch.Restart(0);
  watch.Add({.at_seconds = 1});
  watch.Add({.at_seconds = 1e6});
  EXPECT_FALSE(watch.Hangs(1e9));
}

TEST(ProgressWatch, BeforeAnythingIsKnownItDoesNotHang) {
  const ProgressWatch watch(kHang);
  EXPECT_FALSE(watch.Hangs(1e9));
  EXPECT_EQ(watch.QuietSeconds(1e9), 0);
}

TEST(ProgressWatch, SilenceIsAHangAfterTheTime) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 100, .cpu_seconds = 5, .io_bytes = 10, .output_bytes = 3});
  for (double at = 101; at < 100 + kHang; ++at) {
    watch.Add({.at_seconds = at, .cpu_seconds = 5, .io_bytes = 10, .output_bytes = 3});
    ASSERT_FALSE(watch.Hangs(at)) << at;
  }
  EXPECT_TRUE(watch.Hangs(100 + kHang));
  EXPECT_EQ(watch.QuietSeconds(100 + kHang), kHang);
}

TEST(ProgressWatch, AJobThatNeverShowsAnythingHangsToo) {
  ProgressWatch watch(kHang);
  watch.Restart(10);
  EXPECT_FALSE(watch.Hangs(69));
  EXPECT_TRUE(watch.Hangs(70));
}

TEST(ProgressWatch, WorkOfThePastDoesNotCount) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 0});
  watch.Add({.at_seconds = 10, .cpu_seconds = 10});
  for (double at = 11; at < 70; ++at) watch.Add({.at_seconds = at, .cpu_seconds = 10});
  EXPECT_FALSE(watch.Hangs(69));
  EXPECT_TRUE(watch.Hangs(70));
}

TEST(ProgressWatch, EveryKindOfSignCounts) {
  const ProgressSample signs[] = {{.cpu_seconds = 1}, {.io_bytes = 1}, {.output_bytes = 1}, {.reported = 1}};
  for (const ProgressSample& sign : signs) {
    ProgressWatch watch(kHang);
    watch.Add({.at_seconds = 0});
    ProgressSample sample = sign;
    sample.at_seconds = 50;
    watch.Add(sample);
    EXPECT_FALSE(watch.Hangs(109)) << &sign - signs;
    EXPECT_TRUE(watch.Hangs(110)) << &sign - signs;
  }
}

TEST(ProgressWatch, OnceItReportsNothingElseCounts) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 0, .reported = 4});
  // It spins in a lock and still writes its log.
  for (double at = 1; at <= 60; ++at) {
    watch.Add(
        {.at_seconds = at, .cpu_seconds = at, .output_bytes = static_cast<uint64_t>(at), .reported = 4});
  }
  EXPECT_TRUE(watch.Hangs(60));
  watch.Add({.at_seconds = 61, .cpu_seconds = 61, .reported = 5});
  EXPECT_FALSE(watch.Hangs(61));
}

TEST(ProgressWatch, AReportThatIsGoneIsNoReport) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 0, .reported = 4});
  watch.Add({.at_seconds = 59, .cpu_seconds = 59, .reported = 0});
  EXPECT_TRUE(watch.Hangs(60));
}

TEST(ProgressWatch, ThreadsThatOnlyWakeToLookAreNoSign) {
  ProgressWatch watch(kHang);
  // 50 us of CPU every 5 s, in the kernel's ticks of 10 ms: one tick now and then.
  watch.Add({.at_seconds = 0, .cpu_seconds = 100});
  for (double at = 1; at <= 59; ++at) {
    watch.Add({.at_seconds = at, .cpu_seconds = at < 30 ? 100 : 100.01});
  }
  EXPECT_TRUE(watch.Hangs(60));
}

TEST(ProgressWatch, LittleButSteadyWorkIsASign) {
  ProgressWatch watch(kHang);
  for (double at = 0; at <= 1000; at += 10) {
    watch.Add({.at_seconds = at, .cpu_seconds = at * 0.005});
    ASSERT_FALSE(watch.Hangs(at));
  }
}

TEST(ProgressWatch, SumsThatFellWhenAProcessEndedGrowFromThere) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 0, .cpu_seconds = 500, .io_bytes = 1000});
  watch.Add({.at_seconds = 10, .cpu_seconds = 20, .io_bytes = 100});
  EXPECT_EQ(watch.QuietSeconds(10), 10);
  watch.Add({.at_seconds = 20, .cpu_seconds = 21, .io_bytes = 100});
  EXPECT_EQ(watch.QuietSeconds(20), 0);
}

TEST(ProgressWatch, ARestartForgets) {
  ProgressWatch watch(kHang);
  watch.Add({.at_seconds = 0, .cpu_seconds = 10, .reported = 9});
  watch.Restart(1000);
  EXPECT_FALSE(watch.Hangs(1059));
  // It does not report any more: it is another life, and other signs count again.
  watch.Add({.at_seconds = 1050, .cpu_seconds = 1});
  EXPECT_EQ(watch.QuietSeconds(1050), 50);
  watch.Add({.at_seconds = 1055, .cpu_seconds = 2});
  EXPECT_EQ(watch.QuietSeconds(1055), 0);
}

TEST(ProgressWatch, AClockThatLagsIsNoTrouble) {
  ProgressWatch watch(kHang);
  watch.Restart(100);
  EXPECT_EQ(watch.QuietSeconds(90), 0);
  EXPECT_FALSE(watch.Hangs(90));
}

TEST(ProgressWatch, WhereOutputIsTheSignOneThatSpinsHangs) {
  ProgressWatch any(10), output(10, ProgressSign::kOutput);
  ProgressSample sample;
  for (ProgressWatch* watch : {&any, &output}) watch->Restart(0);
  for (int at = 1; at <= 60; ++at) {
    sample.at_seconds = at;
    sample.cpu_seconds = at;
    sample.io_bytes = static_cast<uint64_t>(at);
    if (at <= 20) sample.output_bytes = static_cast<uint64_t>(at);
    any.Add(sample);
    output.Add(sample);
    EXPECT_FALSE(any.Hangs(at));
    EXPECT_EQ(output.Hangs(at), at >= 30) << at;
  }
  // What it says of itself counts more than that.
  sample.at_seconds = 61;
  sample.reported = 1;
  output.Add(sample);
  EXPECT_FALSE(output.Hangs(61));
}

TEST(ProgressWatch, TellsThatAHangMayGoUnseen) {
  ProgressWatch any(10), output(10, ProgressSign::kOutput), none(0), speaks(10);
  for (ProgressWatch* watch : {&any, &output, &none, &speaks}) watch->Restart(0);
  EXPECT_FALSE(any.MayHangUnseen(9.9));
  EXPECT_TRUE(any.MayHangUnseen(10));
  EXPECT_FALSE(output.MayHangUnseen(10));
  EXPECT_FALSE(none.MayHangUnseen(10));
  speaks.Add({.at_seconds = 1, .reported = 1});
  EXPECT_FALSE(speaks.MayHangUnseen(10));
}

}  // namespace
}  // namespace rekindle::supervise
