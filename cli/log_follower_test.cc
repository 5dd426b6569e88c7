#include "cli/log_follower.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "base/file.h"
#include "cli/logs_command.h"

namespace rekindle::cli {
namespace {

class LogFollowerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Open();
    int ends[2];
    ASSERT_TRUE(log_.valid() && ::pipe2(ends, O_CLOEXEC) == 0);
    shown_.Reset(ends[0]);
    output_.Reset(ends[1]);
  }

  void Write(const std::string& text) {
    ASSERT_TRUE(WriteFully(log_.get(), text.data(), text.size(), path_).ok());
  }
  void Open() { log_.Reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600)); }
  // As a roll-back does it, for a job that goes on from an image: what is cut off is kept.
  void CutTo(size_t size) {
    const std::string tail = path_ + ".rekindle-tail-" + std::to_string(++tails_);
    ASSERT_TRUE(UniqueFd(::open(tail.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)).valid());
    ASSERT_EQ(::ftruncate(log_.get(), static_cast<off_t>(size)), 0);
  }
  void Make(const std::string& name, const std::string& content) {
    ASSERT_TRUE(std::ofstream(folder_.path() + "/" + name) << content);
  }
  void Rename(const std::string& from, const std::string& to) {
    ASSERT_EQ(::rename((folder_.path() + "/" + from).c_str(), (folder_.path() + "/" + to).c_str()), 0);
  }
  void Follow(uint64_t offset) {
    auto follower = LogFollower::Start(path_, offset, output_.get());
    ASSERT_TRUE(follower.ok()) << follower.status();
    follower_ = *std::move(follower);
  }
  // As a roll-back does it where the log is gone: `half_made` is its name until it is whole.
  void ExpectNotShownAgainWhenMadeAs(const std::string& half_made) {
    Follow(0);
    Write("1\n2\n3\n");
    EXPECT_EQ(Next(6), "1\n2\n3\n");
    Make(half_made, "1\n");
    Rename(half_made, "log");
    Open();
    Write("2\n3\n4\n");
    EXPECT_EQ(Rest(), "4\n");
  }
  // The next so many bytes that are shown.
  std::string Next(size_t size) {
    constexpr int kPatienceMs = 10'000;
    std::string text;
    while (text.size() < size) {
      pollfd ready{shown_.get(), POLLIN, 0};
      if (::poll(&ready, 1, kPatienceMs) <= 0) break;
      char buffer[4096];
      const ssize_t n = ::read(shown_.get(), buffer, std::min(sizeof buffer, size - text.size()));
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  // What is shown until its end.
  std::string Rest() {
    follower_.reset();
    output_.Reset();
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(shown_.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }

  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_log_test.").value();
  const std::string path_ = folder_.path() + "/log";
  UniqueFd log_, shown_, output_;
  int tails_ = 0;
  std::unique_ptr<LogFollower> follower_;
};

TEST_F(LogFollowerTest, ShowsWhatIsAppended) {
  Write("before\n");
  Follow(7);
  Write("one\n");
  EXPECT_EQ(Next(4), "one\n");
  Write("two\n");
  EXPECT_EQ(Rest(), "two\n");
}

// As a parent that waits for many makes its pipes.
TEST_F(LogFollowerTest, APipeThatIsFullForAMomentMissesNothing) {
  ASSERT_EQ(::fcntl(output_.get(), F_SETFL, O_NONBLOCK), 0);
  std::string text;
  for (int i = 0; text.size() < 500'000; ++i) text += std::to_string(i) + "\n";
  Write(text);
  Follow(0);
  EXPECT_EQ(Next(text.size()), text);
  EXPECT_TRUE(follower_->Finish().ok());
}

TEST_F(LogFollowerTest, AnOutputThatTakesNoMoreIsAnError) {
  output_.Reset(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(output_.valid());
  Write("one\n");
  Follow(0);
  EXPECT_EQ(follower_->Finish().message(), "writing standard output: No space left on device");
}

TEST_F(LogFollowerTest, AReaderThatHasSeenEnoughIsNone) {
  struct sigaction ignored {};
  struct sigaction before;
  ignored.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGPIPE, &ignored, &before), 0);
  shown_.Reset();
  Write("one\n");
  Follow(0);
  EXPECT_TRUE(follower_->Finish().ok());
  ASSERT_EQ(::sigaction(SIGPIPE, &before, nullptr), 0);
}

TEST_F(LogFollowerTest, WhatIsWrittenAgainIsShownOnce) {
  Follow(0);
  Write("1\n2\n3\n");
  EXPECT_EQ(Next(6), "1\n2\n3\n");
  CutTo(2);
  Write("2\n");
  Write("3\n4\n");
  EXPECT_EQ(Rest(), "4\n");
}

TEST_F(LogFollowerTest, FromTheFirstLineOnThatIsAnotherAllIsShown) {
  Follow(0);
  Write("step 1\nstep 2 loss 0.31\nstep 3 loss 0.30\n");
  EXPECT_EQ(Next(41), "step 1\nstep 2 loss 0.31\nstep 3 loss 0.30\n");
  CutTo(7);
  Write("step 2 loss 0.32\n");
  EXPECT_EQ(Next(17), "step 2 loss 0.32\n");
  Write("step 3 loss 0.30\n");
  EXPECT_EQ(Rest(), "step 3 loss 0.30\n");
}

TEST_F(LogFollowerTest, AlsoWhenItIsLongerThanBeforeAtTheNextLook) {
  Write("a\nold\n");
  Follow(6);
  Write("x\n");
  EXPECT_EQ(Next(2), "x\n");
  CutTo(2);
  Write("new and longer\n");
  EXPECT_EQ(Rest(), "new and longer\n");
}

TEST_F(LogFollowerTest, ALineOfWhichOnlyTheBeginningWasShown) {
  Follow(0);
  Write("1\nhalf");
  EXPECT_EQ(Next(6), "1\nhalf");
  CutTo(2);
  Write("half a line\n");
  EXPECT_EQ(Next(8), " a line\n");
  Write("second h");
  EXPECT_EQ(Next(8), "second h");
  CutTo(14);
  Write("other\n");
  EXPECT_EQ(Rest(), "\nother\n");
}

TEST_F(LogFollowerTest, ALogThatSomebodyElseCutsOffIsShownFromItsBeginning) {
  Follow(0);
  for (int i = 0; i < 3; ++i) {
    Write("tick\n");
    EXPECT_EQ(Next(5), "tick\n");
    Write("tick\n");
    EXPECT_EQ(Next(5), "tick\n");
    // As logrotate's copytruncate: the lines that come are no others, and new.
    ASSERT_EQ(::ftruncate(log_.get(), 0), 0);
  }
  Write("tick\n");
  EXPECT_EQ(Rest(), "tick\n");
}

TEST_F(LogFollowerTest, AnotherFileOfItsNameIsShownFromItsBeginning) {
  Write("before\n");
  Follow(7);
  Write("1\n");
  EXPECT_EQ(Next(2), "1\n");
  Rename("log", "log.1");
  Write("2\n");  // whoever has it open does not know of that
  EXPECT_EQ(Next(2), "2\n");
  const UniqueFd old = std::move(log_);
  Open();
  Write("3\n");
  EXPECT_EQ(Next(2), "3\n");
  ASSERT_TRUE(WriteFully(old.get(), "4\n", 2, path_).ok());
  EXPECT_EQ(Next(2), "4\n");
  Write("5\nhal");
  EXPECT_EQ(Next(5), "5\nhal");
  // Once more, with another way of making the new one, and what is in it is not less than what there was.
  Make("new", "6\n7\n8\n9\n");
  Rename("log", "log.2");
  Rename("new", "log");
  EXPECT_EQ(Rest(), "\n6\n7\n8\n9\n");
}

TEST_F(LogFollowerTest, ALogThatHasItsNameBackIsNotShownAgain) {
  Follow(0);
  Write("1\n");
  EXPECT_EQ(Next(2), "1\n");
  Rename("log", "aside");
  const UniqueFd first = std::move(log_);
  Open();
  Write("2\n");
  EXPECT_EQ(Next(2), "2\n");
  Rename("aside", "log");
  ASSERT_TRUE(WriteFully(first.get(), "3\n", 2, path_).ok());
  EXPECT_EQ(Rest(), "3\n");
}

TEST_F(LogFollowerTest, ALogThatARollBackHasMadeAgainIsNotShownAgain) {
  ExpectNotShownAgainWhenMadeAs(".log.rekindle-new");
}

TEST_F(LogFollowerTest, WhereItsNewNameWasTakenNeither) {
  ExpectNotShownAgainWhenMadeAs(".log.0123456789abcdef.rekindle-new");
}

TEST_F(LogFollowerTest, ContinuesAtACutOfWhichItKnowsNothing) {
  const std::string megabytes(5 << 20, 'x');
  Write(megabytes);
  Follow(megabytes.size());
  CutTo(100);
  // What is written before it has seen the cut may pass unseen.
  pollfd ready{shown_.get(), POLLIN, 0};
  do {
    Write("on\n");
  } while (::poll(&ready, 1, /*timeout_ms=*/10) == 0);
  EXPECT_EQ(Next(3), "on\n");
}

TEST_F(LogFollowerTest, WhereTheLastLinesBegin) {
  const std::string long_line(100'000, 'x');  // more than is read at once
  const std::string text = "1\n" + long_line + "\n3\n";
  Write(text);
  const auto last = [&](uint64_t lines) { return BeginOfLastLines(log_.get(), text.size(), lines); };
  EXPECT_EQ(last(0), text.size());
  EXPECT_EQ(last(1), text.size() - 2);
  EXPECT_EQ(last(2), 2u);
  EXPECT_EQ(last(3), 0u);
  EXPECT_EQ(last(9), 0u);
  EXPECT_EQ(BeginOfLastLines(log_.get(), text.size() - 1, 1), text.size() - 2) << "one that is not complete";
  EXPECT_EQ(BeginOfLastLines(log_.get(), 0, 1), 0u);
}

}  // namespace
}  // namespace rekindle::cli
