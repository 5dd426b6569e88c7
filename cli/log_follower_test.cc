#include "cli/log_follower.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/file.h"

namespace rekindle::cli {
namespace {

class LogFollowerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log_.Reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    int ends[2];
    ASSERT_TRUE(log_.valid() && ::pipe2(ends, O_CLOEXEC) == 0);
    shown_.Reset(ends[0]);
    output_.Reset(ends[1]);
  }

  void Write(const std::string& text) {
    ASSERT_TRUE(WriteFully(log_.get(), text.data(), text.size(), path_).ok());
  }
  // As a job that goes on from an image does it.
  void CutTo(size_t size) { ASSERT_EQ(::ftruncate(log_.get(), static_cast<off_t>(size)), 0); }
  void Follow(uint64_t offset) {
    auto follower = LogFollower::Start(path_, offset, output_.get());
    ASSERT_TRUE(follower.ok()) << follower.status();
    follower_ = *std::move(follower);
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

}  // namespace
}  // namespace rekindle::cli
