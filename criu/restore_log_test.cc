#include "criu/restore_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rekindle::criu {
namespace {

constexpr int64_t kRequested = 5'000'000'000;
constexpr int64_t kMicrosecond = 1000;

// Of CRIU 4.2.1 restoring a Python process with --lazy-pages, shortened.
std::string RealLog() {
  std::ifstream file(absl::StrCat(REKINDLE_CRIU_TESTDATA, "/restore-stages.log"));
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<Span> OfThread(const Timeline& timeline, const std::string& thread) {
  std::vector<Span> spans;
  std::copy_if(timeline.begin(), timeline.end(), std::back_inserter(spans),
               [&](const Span& span) { return span.thread == thread; });
  return spans;
}

std::vector<std::string> Names(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

Span Named(const std::vector<Span>& spans, const std::string& name) {
  return *std::find_if(spans.begin(), spans.end(), [&](const Span& span) { return span.name == name; });
}

TEST(RestoreLogTest, TheStagesOfCriuItself) {
  const std::vector<Span> own = OfThread(RestoreStages(RealLog(), kRequested, {}), "restore");
  EXPECT_EQ(Names(own), (std::vector<std::string>{"kernel features", "image tree", "pre-restore call",
                                                  "tasks", "post-restore call", "letting go", "resuming"}));
  EXPECT_EQ(own.front().begin_ns, kRequested);
  EXPECT_EQ(own.front().duration_ns, 62175 * kMicrosecond);  // up to "(00.062175) Reading image tree"
  for (size_t i = 1; i < own.size(); ++i) EXPECT_EQ(own[i].begin_ns, own[i - 1].end_ns()) << own[i].name;
  EXPECT_EQ(own.back().end_ns(), kRequested + 77924 * kMicrosecond);  // "Restore finished successfully"
}

TEST(RestoreLogTest, TheStagesOfATask) {
  const Timeline timeline = RestoreStages(RealLog(), kRequested, {});
  const std::vector<Span> task = OfThread(timeline, "task 11151");
  EXPECT_EQ(Names(task),
            (std::vector<std::string>{"namespaces and images", "mappings", "pages", "children", "descriptors",
                                      "restorer's plan", "placing memory", "threads and the rest"}));
  EXPECT_EQ(Named(task, "mappings").numbers.at("mappings"), 48);
  EXPECT_EQ(Named(task, "pages").numbers.at("pages"), 317);
  EXPECT_EQ(Named(task, "pages").numbers.at("lazy_pages"), 5722);
  EXPECT_EQ(Named(task, "placing memory").begin_ns, kRequested + 69033 * kMicrosecond);
  const Span& tasks = Named(OfThread(timeline, "restore"), "tasks");
  EXPECT_GE(task.front().begin_ns, tasks.begin_ns);
  EXPECT_LE(task.back().end_ns(), tasks.end_ns());
  for (const Span& span : timeline) EXPECT_EQ(span.process, "criu");
}

TEST(RestoreLogTest, ItsBeginIsFoundByWhatCriuTold) {
  // 0.062466 and 0.074608 in the log; the second was read 300 microseconds late.
  const std::vector<StageReached> stages = {
      {"pre-restore", kRequested + (1000 + 62466) * kMicrosecond},
      {"post-restore", kRequested + (1300 + 74608) * kMicrosecond},
  };
  const Timeline timeline = RestoreStages(RealLog(), kRequested, stages);
  ASSERT_FALSE(timeline.empty());
  EXPECT_EQ(timeline.front().begin_ns, kRequested + 1000 * kMicrosecond);
  // A begin before the request would be nonsense.
  EXPECT_EQ(RestoreStages(RealLog(), kRequested, {{"pre-restore", kRequested}}).front().begin_ns, kRequested);
}

TEST(RestoreLogTest, EachTaskForItself) {
  const Timeline timeline = RestoreStages(
      "(00.000000) Version: 4.2.1\n"
      "(00.000100) Forking task with 7 pid (flags 0x0)\n"
      "(00.000150)      7: one\n"
      "(00.000180)      8: one\n"
      "(00.000200)      7: Found 3 VMAs in image\n"
      "(00.000300)      8: Found 4 VMAs in image\n"
      "(00.000400) pie: 8: 8: Restored\n"
      "(00.000500) pie: 7: 7: Restored\n"
      "(00.000600) pie: 7: after that\n"
      "(00.000700) Restore finished successfully. Tasks resumed.\n",
      kRequested, {});
  const std::vector<Span> first = OfThread(timeline, "task 7"), second = OfThread(timeline, "task 8");
  ASSERT_EQ(first.size(), 2);
  ASSERT_EQ(second.size(), 2);
  EXPECT_EQ(first[1].numbers.at("mappings"), 3);
  EXPECT_EQ(first[1].end_ns(), kRequested + 500 * kMicrosecond);
  EXPECT_EQ(second[1].numbers.at("mappings"), 4);
  EXPECT_EQ(second[1].end_ns(), kRequested + 400 * kMicrosecond);
}

TEST(RestoreLogTest, WhatIsNoLogGivesNothing) {
  EXPECT_TRUE(RestoreStages("", kRequested, {}).empty());
  EXPECT_TRUE(RestoreStages("nothing\n(x.y) z\n(1) a\n(00.12) b\n().()\n", kRequested, {}).empty());
}

}  // namespace
}  // namespace rekindle::criu
