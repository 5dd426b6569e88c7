#include "cli/timeline.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMillisecond = 1'000'000;

v1::Span* Add(v1::Timeline* timeline, const std::string& process, const std::string& thread,
              const std::string& name, int64_t begin_ms, int64_t end_ms) {
  v1::Span* span = timeline->add_spans();
  span->set_process(process);
  span->set_thread(thread);
  span->set_name(name);
  span->set_begin_ns(1'000'000'000'000 + begin_ms * kMillisecond);
  span->set_duration_ns((end_ms - begin_ms) * kMillisecond);
  return span;
}

v1::Timeline Clone() {
  v1::Timeline timeline;
  timeline.set_pid(4711);
  Add(&timeline, "rekindle", "restore", "restore", 0, 100);
  (*Add(&timeline, "rekindle", "restore", "sandbox", 0, 10)->mutable_numbers())["made_ahead"] = 1;
  Add(&timeline, "rekindle", "restore", "criu", 10, 60);
  Add(&timeline, "criu", "restore", "tasks", 12, 55);
  (*Add(&timeline, "criu", "task 7", "mappings", 13, 20)->mutable_numbers())["mappings"] = 321;
  Add(&timeline, "criu", "task 7", "placing memory", 20, 50);
  Add(&timeline, "criu", "task 8", "mappings", 13, 15);
  Add(&timeline, "rekindle", "restore", "answer", 60, 100);
  Add(&timeline, "pager", "restore", "attach", 10, 11);
  Add(&timeline, "pager", "faults 1", "fault", 61, 62);
  Add(&timeline, "pager", "faults 1", "fault", 70, 71);
  (*Add(&timeline, "pager", "job", "serving", 60, 101)->mutable_numbers())["faults"] = 2;
  return timeline;
}

void SetNumber(v1::Timeline* timeline, const std::string& name, const std::string& number, int64_t value) {
  for (v1::Span& span : *timeline->mutable_spans()) {
    if (span.name() == name) (*span.mutable_numbers())[number] = value;
  }
}

void SetEnd(v1::Timeline* timeline, const std::string& process, const std::string& name, int64_t end_ms) {
  for (v1::Span& span : *timeline->mutable_spans()) {
    if (span.name() != name || span.process() != process) continue;
    span.set_duration_ns(1'000'000'000'000 + end_ms * kMillisecond - span.begin_ns());
  }
}

// The events of a kind, by name where they have one each.
std::vector<json> Events(const json& trace, const std::string& kind) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == kind) events.push_back(event);
  }
  return events;
}

TEST(ChromeTraceTest, SpansBecomeEvents) {
  const json trace = json::parse(ChromeTrace({Clone()}));
  const std::vector<json> events = Events(trace, "X");
  ASSERT_EQ(events.size(), 12);
  auto named = [&](const std::string& name) {
    return *std::find_if(events.begin(), events.end(), [&](const json& e) { return e.at("name") == name; });
  };
  EXPECT_EQ(named("restore").at("ts"), 0);
  EXPECT_EQ(named("restore").at("dur"), 100'000);
  EXPECT_EQ(named("placing memory").at("ts"), 20'000);
  EXPECT_EQ(named("placing memory").at("dur"), 30'000);
  EXPECT_EQ(named("serving").at("args").at("faults"), 2);
  EXPECT_EQ(named("sandbox").at("pid"), named("criu").at("pid"));
  EXPECT_NE(named("sandbox").at("pid"), named("tasks").at("pid"));
  EXPECT_EQ(named("tasks").at("pid"), named("placing memory").at("pid"));
  EXPECT_NE(named("tasks").at("tid"), named("placing memory").at("tid"));
}

TEST(ChromeTraceTest, EveryProcessAndThreadHasAName) {
  const json trace = json::parse(ChromeTrace({Clone()}));
  std::set<std::pair<int, int>> used, named;
  std::set<std::string> processes;
  for (const json& event : Events(trace, "X")) used.emplace(event.at("pid"), event.at("tid"));
  for (const json& event : Events(trace, "M")) {
    if (event.at("name") == "thread_name") named.emplace(event.at("pid"), event.at("tid"));
    if (event.at("name") == "process_name") processes.insert(event.at("args").at("name").get<std::string>());
  }
  EXPECT_EQ(used, named);
  EXPECT_EQ(processes, (std::set<std::string>{"rekindle", "criu", "pager"}));
}

TEST(ChromeTraceTest, CopiesAreKeptApart) {
  v1::Timeline other = Clone();
  other.set_pid(4712);
  const json trace = json::parse(ChromeTrace({Clone(), other}));
  std::set<std::string> processes;
  std::set<int> numbers;
  for (const json& event : Events(trace, "M")) {
    if (event.at("name") != "process_name") continue;
    processes.insert(event.at("args").at("name").get<std::string>());
    numbers.insert(event.at("pid").get<int>());
  }
  EXPECT_EQ(processes.size(), 6);
  EXPECT_EQ(numbers.size(), 6);
  EXPECT_EQ(processes.count("criu for PID 4712"), 1);
}

TEST(ChromeTraceTest, WithoutSpansItIsATraceAllTheSame) {
  EXPECT_TRUE(json::parse(ChromeTrace({})).at("traceEvents").empty());
}

TEST(ExplainTest, RowsInTheOrderOfTimeWithShares) {
  const std::string text = Explain(Clone());
  const std::vector<std::string> expected = {"WHAT",  "sandbox",        "criu",  "attach",
                                             "tasks", "placing memory", "answer"};
  size_t at = 0;
  for (const std::string& word : expected) {
    const size_t found = text.find(word, at);
    ASSERT_NE(found, std::string::npos) << word << " behind " << at << " in\n" << text;
    at = found;
  }
  EXPECT_TRUE(absl::StrContains(text, "50.0 %")) << text;  // criu
  EXPECT_TRUE(absl::StrContains(text, "321 mappings")) << text;
  EXPECT_TRUE(absl::StrContains(text, "2 page faults")) << text;
}

TEST(ExplainTest, TheLargestIsWhatTookTimeItself) {
  // "criu" took 50 ms, but most of that within other rows.
  std::string text = Explain(Clone());
  EXPECT_TRUE(absl::StrContains(text, "Largest: answer (rekindle), 40.0 ms, 40 %.")) << text;
  EXPECT_TRUE(absl::StrContains(text, "no working set was recorded yet")) << text;
  v1::Timeline timeline = Clone();
  SetNumber(&timeline, "attach", "working_set_pages", 100);
  text = Explain(timeline);
  EXPECT_FALSE(absl::StrContains(text, "no working set was recorded yet")) << text;
  SetEnd(&timeline, "rekindle", "restore", 70);
  SetEnd(&timeline, "rekindle", "answer", 70);
  text = Explain(timeline);
  EXPECT_TRUE(
      absl::StrContains(text, "Largest: placing memory (criu), 30.0 ms, 43 %. CRIU treats each of the 321"))
      << text;
}

TEST(ExplainTest, ASandboxThatWasNotReady) {
  v1::Timeline timeline;
  Add(&timeline, "rekindle", "restore", "restore", 0, 30);
  v1::Span* sandbox = Add(&timeline, "rekindle", "restore", "sandbox", 0, 20);
  EXPECT_TRUE(absl::StrContains(Explain(timeline), "No sandbox of this kind was ready"));
  (*sandbox->mutable_numbers())["descriptors_of_the_caller"] = 3;
  EXPECT_TRUE(absl::StrContains(Explain(timeline), "with --detach"));
  (*sandbox->mutable_numbers())["made_ahead"] = 1;
  EXPECT_TRUE(absl::EndsWith(Explain(timeline), "Largest: sandbox (rekindle), 20.0 ms, 67 %.\n"));
}

TEST(ExplainTest, WhatARecordingWaitsFor) {
  v1::Timeline timeline;
  Add(&timeline, "rekindle", "restore", "restore", 0, 30);
  Add(&timeline, "pager", "restore", "attach", 1, 2);
  EXPECT_FALSE(absl::StrContains(Explain(timeline), "recorded"));
  SetNumber(&timeline, "attach", "record_ms", 1000);
  EXPECT_TRUE(absl::StrContains(Explain(timeline), "\nIts working set is recorded for 1.00 s; "));
  v1::Span* sockets = Add(&timeline, "pager", "restore", "finding its listening sockets", 2, 3);
  EXPECT_TRUE(absl::StrContains(Explain(timeline), "recorded for "));
  (*sockets->mutable_numbers())["found"] = 1;
  EXPECT_TRUE(absl::StrContains(Explain(timeline), "a socket that it listens on, at most 1.00 s; "));
  // It has said that it is ready.
  Add(&timeline, "rekindle", "restore", "answer", 4, 30);
  EXPECT_FALSE(absl::StrContains(Explain(timeline), "recorded for "));
}

TEST(ExplainTest, NothingIsExplainedByNothing) { EXPECT_EQ(Explain(v1::Timeline()), ""); }

class TraceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/trace_file_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(directory_).ok()); }
  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  std::vector<std::string> Files() const { return *ListDirectory(directory_); }

  std::string directory_;
};

TEST_F(TraceFileTest, IsThereOnceItIsWritten) {
  {
    auto file = TraceFile::Create(Path("out.json"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(PathExists(Path("out.json")));
    ASSERT_TRUE(file->Write("content").ok());
  }
  EXPECT_EQ(Files(), std::vector<std::string>{"out.json"});
  EXPECT_EQ(*ReadFile(Path("out.json")), "content");
}

TEST_F(TraceFileTest, WhatWasThereStaysUntilThen) {
  ASSERT_TRUE(WriteFileAtomically(Path("out.json"), "old").ok());
  { ASSERT_TRUE(TraceFile::Create(Path("out.json")).ok()); }
  EXPECT_EQ(Files(), std::vector<std::string>{"out.json"});
  EXPECT_EQ(*ReadFile(Path("out.json")), "old");
}

TEST_F(TraceFileTest, ALinkStays) {
  ASSERT_EQ(::symlink("there.json", Path("link.json").c_str()), 0);
  auto file = TraceFile::Create(Path("link.json"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Write("content").ok());
  EXPECT_EQ(Files(), (std::vector<std::string>{"link.json", "there.json"}));
  EXPECT_EQ(*ReadLink(Path("link.json")), "there.json");
  EXPECT_EQ(*ReadFile(Path("there.json")), "content");
}

TEST_F(TraceFileTest, RefusesWhatCannotBeWritten) {
  EXPECT_FALSE(TraceFile::Create(Path("none/out.json")).ok());
  EXPECT_EQ(TraceFile::Create(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TraceFile::Create("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Files().empty());
}

}  // namespace
}  // namespace rekindle::cli
