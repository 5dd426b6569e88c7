#include "functions/function_logs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/unique_fd.h"
#include "functions/log_stream.h"

namespace rekindle::functions {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FunctionLogsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = TemporaryDirectory::Make("/tmp", "rk-logs-");
    ASSERT_TRUE(made.ok()) << made.status();
    directory_.emplace(*std::move(made));
    auto logs = FunctionLogs::Open(directory_->path());
    ASSERT_TRUE(logs.ok()) << logs.status();
    logs_ = *std::move(logs);
  }
  std::string Folder() const { return directory_->path() + "/functions/fn"; }
  std::shared_ptr<LogStream> Open(const std::string& instance) {
    auto stream = logs_->OpenStream("fn", instance, owner_);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  }
  // What an instance writes.
  static void Write(const LogStream& stream, const std::string& text) {
    auto output = stream.OpenForInstance();
    ASSERT_TRUE(output.ok()) << output.status();
    ASSERT_TRUE(WriteFully(output->get(), text.data(), text.size(), "log").ok());
  }
  static void Finish(LogStream& stream, const std::string& id) {
    InvocationReport report;
    report.request_id = id;
    stream.End(report);
  }
  // "INSTANCE text" of each line.
  std::vector<std::string> Read(LogReadOptions options = {}) {
    options.owner = owner_.uid;
    std::vector<std::string> lines;
    absl::Status status = logs_->Read("fn", options, [&](const LogLine& line) {
      lines.push_back(absl::StrCat(line.instance, " ", line.text));
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    return lines;
  }

  std::optional<TemporaryDirectory> directory_;
  std::unique_ptr<FunctionLogs> logs_;
  Owner owner_{::geteuid(), ::getegid(), {}};
};

TEST_F(FunctionLogsTest, AStartThatFailsIsReported) {
  auto stream = Open("i1");
  stream->Note("Error: Runtime exited with error: exit status 7");
  stream->FailStart({0.0157401, "Runtime.ExitError", /*timed_out=*/false});
  stream->FailStart({60, "", /*timed_out=*/true});
  EXPECT_THAT(Read(),
              ElementsAre("i1 Error: Runtime exited with error: exit status 7",
                          "i1 INIT_REPORT Init Duration: 15.74 ms\tPhase: init\tStatus: error\tError Type: "
                          "Runtime.ExitError",
                          "i1 INIT_REPORT Init Duration: 60000.00 ms\tPhase: init\tStatus: timeout"));
}

TEST_F(FunctionLogsTest, LinesOfTheDaemonAreThoseOfLambda) {
  auto stream = Open("i1");
  EXPECT_EQ(stream->Begin("8f507cfc-0000"), 0u);
  Write(*stream, "hello\nno end");
  InvocationReport report;
  report.request_id = "8f507cfc-0000";
  report.duration_seconds = 0.0157401;
  report.memory_limit_bytes = uint64_t{128} << 20;
  report.most_memory_bytes = (uint64_t{55} << 20) + 1;
  report.init_seconds = 0.13049;
  stream->End(report);
  EXPECT_EQ(
      *ReadFile(Folder() + "/i1.log"),
      "START RequestId: 8f507cfc-0000 Version: $LATEST\n"
      "hello\nno end\n"
      "END RequestId: 8f507cfc-0000\n"
      "REPORT RequestId: 8f507cfc-0000\tDuration: 15.74 ms\tBilled Duration: 16 ms\tMemory Size: 128 MB\t"
      "Max Memory Used: 56 MB\tInit Duration: 130.49 ms\n");
  const std::string before = *ReadFile(Folder() + "/i1.log");
  EXPECT_EQ(stream->Begin("2"), before.size());
  stream->Note("2 Task timed out after 3.00 seconds");
  report.init_seconds.reset();
  report.status = "timeout";
  stream->End(report);
  EXPECT_THAT(*ReadFile(Folder() + "/i1.log"),
              ::testing::EndsWith("Max Memory Used: 56 MB\tStatus: timeout\n"));
}

TEST_F(FunctionLogsTest, BeginsAreRightWhileTheInstanceWrites) {
  auto stream = Open("i1");
  std::atomic<bool> done{false};
  std::thread instance([&] {
    auto output = stream->OpenForInstance();
    while (!done) {
      ASSERT_TRUE(WriteFully(output->get(), "noise\nx", 7, "log").ok());
    }
  });
  std::vector<uint64_t> begins;
  for (int i = 0; i < 200; ++i) {
    begins.push_back(stream->Begin(absl::StrCat(i)));
    Finish(*stream, absl::StrCat(i));
  }
  done = true;
  instance.join();
  const std::string log = *ReadFile(Folder() + "/i1.log");
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(log.substr(begins[static_cast<size_t>(i)], 40),
                StartsWith(absl::StrCat("START RequestId: ", i, " ")));
  }
}

TEST_F(FunctionLogsTest, TheTailIsTheEndOfThisInvocation) {
  auto stream = Open("i1");
  stream->Begin("1");
  Write(*stream, "of the first\n");
  const uint64_t second = stream->Begin("2");
  Write(*stream, "of the second\n");
  EXPECT_EQ(stream->TailSince(second), "START RequestId: 2 Version: $LATEST\nof the second\n");
  for (int i = 0; i < 1000; ++i) Write(*stream, absl::StrCat("line ", i, "\n"));
  const std::string tail = stream->TailSince(second);
  EXPECT_LE(tail.size(), 4096u);
  EXPECT_GT(tail.size(), 4000u);
  EXPECT_THAT(tail, StartsWith("line "));
  EXPECT_THAT(tail, ::testing::EndsWith("line 999\n"));
  std::string umlauts = "x";
  for (int i = 0; i < 4096; ++i) umlauts += "ä";
  Write(*stream, umlauts);
  EXPECT_EQ(stream->TailSince(second).size(), 4096u);
  Write(*stream, "x");
  EXPECT_THAT(stream->TailSince(second), StartsWith("ä"));
  EXPECT_EQ(stream->TailSince(UINT64_MAX), "");
}

TEST_F(FunctionLogsTest, AStreamIsBoundedAndKeepsItsEnd) {
  auto stream = Open("i1");
  stream->Begin("1");
  const std::string block = std::string(1023, 'x') + "\n";
  std::string mebibyte;
  while (mebibyte.size() < 1 << 20) mebibyte += block;
  for (int i = 0; i < 17; ++i) Write(*stream, mebibyte);
  const uint64_t offset = stream->Begin("2");
  Write(*stream, "the last\n");
  logs_->Tidy();
  struct stat info {};
  ASSERT_EQ(::stat((Folder() + "/i1.log").c_str(), &info), 0);
  EXPECT_LE(info.st_blocks * 512, int64_t{9} << 20);
  EXPECT_EQ(stream->TailSince(offset), "START RequestId: 2 Version: $LATEST\nthe last\n");
  std::vector<std::string> lines = Read();
  EXPECT_THAT(lines.front(), HasSubstr("older lines were dropped here"));
  EXPECT_GT(lines.size(), 8000u);
  EXPECT_LT(lines.size(), 9000u);
  EXPECT_EQ(lines.back(), "i1 the last");
  EXPECT_THAT(lines, ::testing::Contains("i1 START RequestId: 2 Version: $LATEST"));
  for (size_t i = 2; i + 3 < lines.size(); ++i) ASSERT_EQ(lines[i].size(), 1023u + 3u) << i;
}

TEST_F(FunctionLogsTest, TheLastLinesAreReadAlsoWhenOlderOnesAreDroppedMeanwhile) {
  auto stream = Open("i1");
  const std::string line = std::string(16383, 'x') + "\n";
  std::string more;
  while (more.size() < LogStream::kMostBytes - LogStream::kKeptBytes) more += line;
  Write(*stream, more);
  LogReadOptions options;
  options.tail_lines = 2;
  for (int i = 0; i < 30; ++i) {
    Write(*stream, more + "the last but one\nthe last\n");
    std::thread trimmer([&] { stream->Trim(); });
    const std::vector<std::string> lines = Read(options);
    trimmer.join();
    ASSERT_EQ(lines.size(), 2u) << i;
    ASSERT_THAT(lines, ElementsAre("i1 the last but one", "i1 the last")) << i;
  }
}

TEST_F(FunctionLogsTest, StreamsAreReadAsOneLogByInvocations) {
  auto a = Open("a"), b = Open("b");
  for (int i = 0; i < 3; ++i) {
    for (const auto& stream : {a, b}) {
      stream->Begin(absl::StrCat(i));
      Write(*stream, absl::StrCat("print ", i, "\n"));
    }
  }
  Write(*a, "no end");
  EXPECT_THAT(Read(), ElementsAre("a START RequestId: 0 Version: $LATEST", "a print 0",
                                  "b START RequestId: 0 Version: $LATEST", "b print 0",
                                  "a START RequestId: 1 Version: $LATEST", "a print 1",
                                  "b START RequestId: 1 Version: $LATEST", "b print 1",
                                  "a START RequestId: 2 Version: $LATEST", "a print 2", "a no end",
                                  "b START RequestId: 2 Version: $LATEST", "b print 2"));
  LogReadOptions options;
  options.tail_lines = 4;
  EXPECT_THAT(Read(options),
              ElementsAre("a print 2", "a no end", "b START RequestId: 2 Version: $LATEST", "b print 2"));
  options.tail_lines = 0;
  EXPECT_TRUE(Read(options).empty());
  options.tail_lines = 1000;
  EXPECT_EQ(Read(options).size(), 13u);
  options.tail_lines.reset();
  Finish(*a, "2");
  options.since_unix_ns = UnixNanos();
  // That of b is still in work.
  b->Begin("3");
  EXPECT_THAT(Read(options), ElementsAre("b START RequestId: 2 Version: $LATEST", "b print 2",
                                         "b START RequestId: 3 Version: $LATEST"));
  Finish(*b, "3");
  options.since_unix_ns = UnixNanos();
  b->Begin("4");
  EXPECT_THAT(Read(options), ElementsAre("b START RequestId: 4 Version: $LATEST"));
}

TEST_F(FunctionLogsTest, AFollowerSeesNewLinesNewStreamsAndTheEnd) {
  auto a = Open("a");
  Write(*a, "old\nbegun");
  LogReadOptions options;
  options.follow = true;
  options.tail_lines = 1;
  options.owner = owner_.uid;
  std::vector<std::string> lines;
  std::thread reader;
  // Each line that arrives brings about the next one, from another thread.
  std::shared_ptr<LogStream> b;
  absl::Status status = logs_->Read("fn", options, [&](const LogLine& line) {
    lines.push_back(absl::StrCat(line.instance, " ", line.text));
    if (reader.joinable()) reader.join();
    reader = std::thread([&, step = lines.size()] {
      if (step == 1) Write(*a, " and ended\nhalf ");
      if (step == 2) {
        b = Open("b");
        Write(*b, "of b\n");
      }
      if (step == 3) Write(*a, "a line\n");
      if (step == 4) logs_->Remove("fn").IgnoreError();
    });
    return true;
  });
  reader.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(lines, ElementsAre("a old", "a begun and ended", "b of b", "a half a line"));
}

TEST_F(FunctionLogsTest, AFollowerEndsWhenToldToAndMayComeBeforeTheFirstStream) {
  LogReadOptions options;
  options.follow = true;
  options.owner = owner_.uid;
  std::atomic<bool> stop{false};
  options.stop = [&] { return stop.load(); };
  std::thread reader([&] {
    absl::Status status = logs_->Read("fn", options, [&](const LogLine& line) {
      EXPECT_EQ(line.text, "first");
      stop = true;
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
  });
  Write(*Open("a"), "first\n");
  reader.join();
  EXPECT_TRUE(stop);
}

TEST_F(FunctionLogsTest, OldStreamsGoAndLivingOnesStay) {
  auto living = Open("living");
  for (size_t i = 0; i < FunctionLogs::kMostEnded + 5; ++i) {
    const std::string name = absl::StrCat("ended-", i);
    Open(name)->Begin("1");
    // As if they had ended one after the other, long ago.
    const timespec times[] = {{1000, 0}, {static_cast<time_t>(1000 + i), 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, absl::StrCat(Folder(), "/", name, ".log").c_str(), times, 0), 0);
  }
  auto last = Open("last");
  EXPECT_TRUE(PathExists(Folder() + "/ended-4.log")) << "a start does not wait for that";
  logs_->Tidy();
  EXPECT_FALSE(PathExists(Folder() + "/ended-4.log"));
  EXPECT_FALSE(PathExists(Folder() + "/ended-4.times"));
  EXPECT_TRUE(PathExists(Folder() + "/ended-5.log"));
  EXPECT_TRUE(PathExists(Folder() + "/living.log"));
  EXPECT_EQ(ListDirectory(Folder())->size(), 2 * (FunctionLogs::kMostEnded + 2));
}

TEST_F(FunctionLogsTest, AFolderThatSomebodyHasRemovedIsMadeAgain) {
  Open("a");
  ASSERT_TRUE(RemoveTree(Folder()).ok());
  Write(*Open("b"), "of b\n");
  EXPECT_THAT(Read(), ElementsAre("b of b"));
  ASSERT_TRUE(logs_->Remove("fn").ok());
  EXPECT_FALSE(PathExists(Folder()));
  Write(*Open("c"), "of c\n");
  EXPECT_THAT(Read(), ElementsAre("c of c"));
}

TEST_F(FunctionLogsTest, ARemovedFunctionIsForgottenWhenItsLastInstanceHasEnded) {
  auto living = Open("a");
  ASSERT_TRUE(logs_->Remove("fn").ok());
  logs_->Tidy();
  EXPECT_EQ(logs_->known(), 1u) << "it still has an instance";
  living.reset();
  logs_->Tidy();
  EXPECT_EQ(logs_->known(), 0u);
  Write(*Open("b"), "of b\n");
  logs_->Tidy();
  EXPECT_EQ(logs_->known(), 1u);
  EXPECT_THAT(Read(), ElementsAre("b of b"));
}

// They are in a file of the function's owner, who can make it any size and write anything into it.
TEST_F(FunctionLogsTest, TimesOfAnySizeAreRead) {
  auto stream = Open("a");
  stream->Begin("1");
  const std::string times = Folder() + "/a.times";
  const LogTime garbage{UINT64_MAX, INT64_MIN};
  UniqueFd file(::open(times.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  ASSERT_EQ(::pwrite(file.get(), &garbage, sizeof garbage, 0), static_cast<ssize_t>(sizeof garbage));
  ASSERT_EQ(::ftruncate(file.get(), (off_t{1} << 40) + 7), 0);
  LogReadOptions options;
  options.since_unix_ns = 1;
  Read(options);
  EXPECT_THAT(Read(), ElementsAre("a START RequestId: 1 Version: $LATEST"));
  // What is over the limit goes, and times with it.
  Write(*stream, std::string(LogStream::kMostBytes, 'x') + "\n");
  stream->Begin("2");
  struct stat info {};
  ASSERT_EQ(::stat(times.c_str(), &info), 0);
  EXPECT_LE(static_cast<uint64_t>(info.st_size), (kMostTimes + 2) * sizeof(LogTime));
  options.tail_lines = 1;
  EXPECT_THAT(Read(options), ElementsAre("a START RequestId: 2 Version: $LATEST"));
}

TEST_F(FunctionLogsTest, WhatItsOwnerHasMadeAHoleIsPassedOver) {
  auto stream = Open("a");
  Write(*stream, "before");
  ASSERT_EQ(::truncate((Folder() + "/a.log").c_str(), off_t{1} << 40), 0);
  Write(*stream, "after\n\nlast\n");
  EXPECT_THAT(Read(), ElementsAre("a before", "a after", "a ", "a last"));
  LogReadOptions options;
  options.tail_lines = 1;
  EXPECT_THAT(Read(options), ElementsAre("a last"));
}

TEST_F(FunctionLogsTest, NobodyWaitsForALease) {
  Open("leased")->Note("one");
  Open("free")->Note("two");
  // Its end would take as long as the machine lets it (/proc/sys/fs/lease-break-time).
  const TestChild holder([&] {
    ::signal(SIGIO, SIG_IGN);
    const int log = ::open((Folder() + "/leased.log").c_str(), O_RDONLY);
    return log >= 0 && ::fcntl(log, F_SETLEASE, F_WRLCK) == 0;
  });
  ASSERT_TRUE(holder.prepared());
  auto refused = logs_->OpenStream("fn", "leased", owner_);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("leased.log"), HasSubstr("F_SETLEASE")));
  EXPECT_TRUE(logs_->OpenStream("fn", "free", owner_).ok());
  EXPECT_THAT(Read(), ElementsAre("free two"));
}

TEST_F(FunctionLogsTest, ALogIsItsOwners) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  owner_ = {65534, 65534, {}};
  auto stream = Open("a");
  stream->Begin("1");
  struct stat info {};
  ASSERT_EQ(::stat((Folder() + "/a.log").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(Folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
  EXPECT_EQ(info.st_mode & 0777, 0711u);
  EXPECT_EQ(Read().size(), 1u);
  // A function of the same name that another user deploys later.
  owner_ = {4711, 4711, {}};
  EXPECT_TRUE(Read().empty());
}

TEST_F(FunctionLogsTest, NamesLeadNowhereElse) {
  for (const char* name : {"", "..", "a/b", ".hidden", "a b"}) {
    EXPECT_EQ(logs_->OpenStream("fn", name, owner_).status().code(), absl::StatusCode::kInvalidArgument)
        << name;
  }
  for (const char* name : {"", "..", "a/b"}) {
    EXPECT_FALSE(logs_->OpenStream(name, "i", owner_).ok()) << name;
    EXPECT_FALSE(logs_->Remove(name).ok()) << name;
    EXPECT_FALSE(logs_->Read(name, {}, [](const LogLine&) { return true; }).ok()) << name;
  }
  EXPECT_TRUE(Read().empty());
}

}  // namespace
}  // namespace rekindle::functions
