#include "cli/top_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'800'000'000 * kSecond;

v1::Job Training(const std::string& name) {
  v1::Job job;
  job.set_name(name);
  job.set_pid(4711);
  job.set_state("running");
  job.set_resident_bytes(uint64_t{3} << 29);
  v1::SupervisedState* state = job.mutable_supervised();
  state->mutable_policy()->set_restarts(10);
  state->set_phase("checkpointing");
  state->set_restarts(2);
  state->set_checkpoints(12);
  state->set_interval_seconds(300);
  state->set_last_image_unix_ns(kNow - 41 * kSecond);
  state->set_last_freeze_seconds(0.0873);
  state->set_total_freeze_seconds(2);
  state->set_run_seconds(1000);
  job.mutable_progress()->set_step(1234);
  job.mutable_progress()->set_total(10000);
  job.mutable_progress()->set_steps_per_second(12.34);
  return job;
}

v1::Job Plain(const std::string& name) {
  v1::Job job;
  job.set_name(name);
  job.set_pid(12);
  job.set_state("stopped");
  job.set_resident_bytes(uint64_t{5} << 20);
  return job;
}

TopFigures Figures(std::vector<v1::Job> jobs) {
  TopFigures figures;
  for (v1::Job& job : jobs) *figures.jobs.add_jobs() = std::move(job);
  figures.images = 12;
  figures.stored_bytes = uint64_t{1} << 30;
  figures.logical_bytes = uint64_t{20} << 30;
  figures.now_unix_ns = kNow;
  figures.time_of_day = "15:02:11";
  return figures;
}

std::string Text(const TopFigures& figures, const TopSize& size = {}) {
  return absl::StrJoin(LayOutTop(figures, size), "",
                       [](std::string* out, const TopLine& line) { absl::StrAppend(out, line.text, "\n"); });
}

TEST(TopFrame, RestartsThatCostNoneAreApart) {
  v1::Job job = Training("llm");
  job.mutable_supervised()->set_restarts(6);
  job.mutable_supervised()->set_attempts(2);
  EXPECT_THAT(Text(Figures({job})), testing::HasSubstr(" 2/10+4 "));
  job.mutable_supervised()->set_attempts(7);  // one is under way
  EXPECT_THAT(Text(Figures({job})), testing::HasSubstr(" 6/10 "));
}

TEST(TopFrame, ShowsEverythingWhereThereIsRoom) {
  TopFigures figures = Figures({Training("llm"), Plain("web")});
  figures.free_bytes = uint64_t{30} << 30;
  EXPECT_EQ(Text(figures),
            "rekindle top  15:02:11  jobs: 2, supervised: 1, restarts: 2, frozen: 0.20 %\n"
            "\n"
            "NAME   PID  STATE                STEP    RATE    LEFT  EVERY  LAST IMAGE   FREEZE  OVERHEAD  "
            "RESTARTS   MEMORY\n"
            "llm   4711  checkpointing  1234/10000  12.3/s  12 min  5 min        41 s  87.3 ms    0.20 %     "
            " 2/10  1.5 GiB\n"
            "web     12  stopped                 -       -       -      -           -        -         -     "
            "    -  5.0 MiB\n"
            "\n"
            "Images: 12, 1.0 GiB stored of 20.0 GiB, 30.0 GiB free\n");
}

TEST(TopFrame, WithoutJobs) {
  EXPECT_EQ(Text(Figures({})),
            "rekindle top  15:02:11  jobs: 0\n\nNo jobs.\n\nImages: 12, 1.0 GiB stored of 20.0 GiB\n");
}

TEST(TopFrame, WhatNobodyHasIsNoColumn) {
  EXPECT_THAT(Text(Figures({Plain("web")})),
              HasSubstr("NAME  PID  STATE     MEMORY\nweb    12  stopped  5.0 MiB\n"));
}

TEST(TopFrame, NarrowTerminalsLoseTheLessImportantFirst) {
  const TopFigures figures = Figures({Training("llm")});
  const auto titles = [&](size_t columns) { return LayOutTop(figures, {columns, 24})[2].text; };
  EXPECT_THAT(titles(120), HasSubstr("LEFT"));
  EXPECT_THAT(titles(109), AllOf(Not(HasSubstr("LEFT")), HasSubstr("EVERY")));
  EXPECT_EQ(titles(80), "NAME  STATE                STEP    RATE  LAST IMAGE  OVERHEAD  RESTARTS   MEMORY");
  EXPECT_EQ(titles(60), "NAME  STATE                STEP  LAST IMAGE  RESTARTS");
  EXPECT_EQ(titles(40), "NAME  STATE                STEP");
  EXPECT_EQ(titles(10), "NAME");
}

TEST(TopFrame, ALongNameTakesWhatIsLeft) {
  const TopFigures figures = Figures({Training("a-name-that-is-far-too-long-for-such-a-narrow-terminal")});
  EXPECT_EQ(LayOutTop(figures, {60, 24})[3].text,
            "a-name-that-is-far-too…  checkpointing  1234/10000      2/10");
  EXPECT_THAT(LayOutTop(figures, {}).at(3).text, HasSubstr("such-a-narrow-terminal"));
}

TEST(TopFrame, FitsEverySize) {
  TopFigures figures = Figures({});
  for (int i = 0; i < 6; ++i) {
    v1::Job job = Training(absl::StrCat("job-with-ünusual-name-", i));
    job.mutable_supervised()->set_last_error(
        "the disk is full: \x1b[31m free some of it and do not wait too long");
    job.mutable_supervised()->add_deaths(
        absl::StrCat("2026-11-22 12:00:", 10 + i, " killed by signal 9; from train:7"));
    *figures.jobs.add_jobs() = job;
  }
  figures.trouble = "the daemon does not answer";
  for (size_t columns = 1; columns <= 140; columns += 3) {
    for (size_t rows = 1; rows <= 30; ++rows) {
      const std::vector<TopLine> lines = LayOutTop(figures, {columns, rows});
      ASSERT_LE(lines.size(), rows);
      for (const TopLine& line : lines) {
        ASSERT_LE(DisplayWidth(line.text), columns) << line.text;
        ASSERT_EQ(line.text.find('\x1b'), std::string::npos);
      }
    }
  }
}

TEST(TopFrame, FewRowsSayHowManyJobsAreNotShown) {
  std::vector<v1::Job> jobs;
  for (int i = 0; i < 30; ++i) jobs.push_back(Training(absl::StrCat("job", i)));
  const TopFigures figures = Figures(jobs);
  const std::vector<TopLine> lines = LayOutTop(figures, {80, 10});
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_THAT(lines[6].text, HasSubstr("job3"));
  EXPECT_EQ(lines[7].text, "… and 26 more");
  EXPECT_THAT(lines[9].text, HasSubstr("Images"));
  EXPECT_THAT(Text(figures), AllOf(HasSubstr("job29"), Not(HasSubstr("more"))));
}

TEST(TopFrame, DeathsNewestFirstAndTroubles) {
  v1::Job one = Training("one"), two = Training("two");
  one.mutable_supervised()->add_deaths("2026-11-22 12:00:01 killed by signal 9; went on from one:4");
  two.mutable_supervised()->add_deaths("2026-11-22 13:00:00 exit status 1");
  two.mutable_supervised()->add_deaths("2026-11-22 11:00:00 exit status 1");
  two.mutable_supervised()->set_phase("failed");
  two.mutable_supervised()->set_report("all 10 restarts are used up");
  const TopFigures figures = Figures({one, two});
  EXPECT_THAT(Text(figures), HasSubstr("\n"
                                       "two: all 10 restarts are used up\n"
                                       "Images: 12, 1.0 GiB stored of 20.0 GiB\n"
                                       "\n"
                                       "Deaths lately\n"
                                       "two: 2026-11-22 13:00:00 exit status 1\n"
                                       "one: 2026-11-22 12:00:01 killed by signal 9; went on from one:4\n"
                                       "two: 2026-11-22 11:00:00 exit status 1\n"));
  for (const TopLine& line : LayOutTop(figures, {80, 24})) {
    const bool title = line.text.rfind("NAME", 0) == 0 || line.text == "Deaths lately";
    const bool trouble = line.text.rfind("two: all", 0) == 0;
    EXPECT_EQ(line.style, title     ? TopLine::Style::kTitle
                          : trouble ? TopLine::Style::kTrouble
                                    : TopLine::Style::kPlain)
        << line.text;
  }
}

TEST(TopFrame, SaysThatItIsNotUpToDate) {
  TopFigures figures = Figures({Plain("web")});
  figures.trouble = "the daemon does not answer";
  const std::vector<TopLine> lines = LayOutTop(figures, {80, 24});
  EXPECT_EQ(lines[1].text, "the daemon does not answer");
  EXPECT_EQ(lines[1].style, TopLine::Style::kTrouble);
}

TEST(TopFrame, RatesAreWrittenInTheUnitThatSuits) {
  const auto text = [](double rate) {
    v1::Job job = Training("x");
    job.mutable_progress()->set_total(0);
    job.mutable_progress()->set_steps_per_second(rate);
    return Text(Figures({job}));
  };
  EXPECT_THAT(text(1500), HasSubstr("1500/s"));
  EXPECT_THAT(text(0.25), HasSubstr("0.25/s"));
  EXPECT_THAT(text(0.05), HasSubstr("3/min"));
  EXPECT_THAT(text(0.001), HasSubstr("3.6/h"));
}

TEST(StepText, WithAndWithoutATotal) {
  v1::Job job;
  EXPECT_EQ(StepText(job), "-");
  job.mutable_progress()->set_step(5);
  EXPECT_EQ(StepText(job), "5");
  job.mutable_progress()->set_total(9);
  EXPECT_EQ(StepText(job), "5/9");
}

TEST(FailureLines, SayWhyAJobWasGivenUp) {
  v1::Job job = Training("llm");
  v1::SupervisedState* state = job.mutable_supervised();
  state->set_report("exit status 3 again");
  state->set_last_error("it could not be brought back from llm:1: /data/log is gone");
  for (int i = 5; i > 0; --i) state->add_deaths(absl::StrCat("2026-11-22 12:00:0", i, " exit status 3"));
  state->set_lost_seconds(90);
  EXPECT_THAT(FailureLines(job), testing::IsEmpty()) << "it may go on";
  state->set_phase("failed");
  EXPECT_THAT(
      FailureLines(job),
      testing::ElementsAre("llm: exit status 3 again",
                           "llm: it could not be brought back from llm:1: /data/log is gone",
                           "llm: 2026-11-22 12:00:05 exit status 3", "llm: 2026-11-22 12:00:04 exit status 3",
                           "llm: 2026-11-22 12:00:03 exit status 3",
                           testing::AllOf(HasSubstr("llm: "), HasSubstr(" of its work were lost"))));
  EXPECT_THAT(FailureLines(Plain("web")), testing::IsEmpty());
}

TEST(TopFrameTest, CopiesElsewhere) {
  v1::Job safe = Training("safe"), stuck = Training("stuck");
  safe.add_copies()->set_copied_unix_ns(kNow - 130 * kSecond);
  stuck.add_copies()->set_trouble("images of stuck are not copied to /mnt since 3 s: it is gone");
  EXPECT_EQ(CopiedText(safe, kNow), "2 min");
  EXPECT_EQ(CopiedText(stuck, kNow), "- !");
  EXPECT_EQ(CopiedText(Training("other"), kNow), "-");
  stuck.mutable_copies(0)->set_copied_unix_ns(kNow - 5 * kSecond);
  EXPECT_EQ(CopiedText(stuck, kNow), "5 s !");
  std::string text;
  for (const TopLine& line : LayOutTop(Figures({safe, stuck}), {})) absl::StrAppend(&text, line.text, "\n");
  EXPECT_THAT(text, AllOf(HasSubstr("COPIED"), HasSubstr("stuck: images of stuck are not copied to /mnt")));
  for (const TopLine& line : LayOutTop(Figures({Training("other")}), {}))
    EXPECT_THAT(line.text, Not(HasSubstr("COPIED")));
}

}  // namespace
}  // namespace rekindle::cli
