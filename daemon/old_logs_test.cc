#include "daemon/old_logs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

using ::testing::UnorderedElementsAre;

std::string LogOf(absl::string_view file) {
  const std::optional<NamedLog> named = NamedLogOf(file);
  return named ? named->job + ": " + named->log : "";
}

TEST(NamedLogOf, KnowsItsOwnAndWhatTheyWereRotatedTo) {
  EXPECT_EQ(LogOf("web-20261129-030944.log"), "web: web-20261129-030944.log");
  EXPECT_EQ(LogOf("web-20261129-030944-12.log"), "web: web-20261129-030944-12.log");
  EXPECT_EQ(LogOf("web-20261129-030944.log.1"), "web: web-20261129-030944.log");
  EXPECT_EQ(LogOf("web-20261129-030944.log.3.gz"), "web: web-20261129-030944.log");
  EXPECT_EQ(LogOf("web-20261129-030944.log-20261206.gz"), "web: web-20261129-030944.log");
  EXPECT_EQ(LogOf("a.log-2-20261129-030944.log"), "a.log-2: a.log-2-20261129-030944.log");
  EXPECT_EQ(LogOf("a-20261129-030944-20261130-111111.log"),
            "a-20261129-030944: a-20261129-030944-20261130-111111.log");
}

TEST(NamedLogOf, LeavesOthersAlone) {
  for (const char* file : {"web.log", "20261129-030944.log", "-20261129-030944.log", "web-20261129.log",
                           "web-20261129-03094.log", "web-20261129-030944.logs", "web-20261129-030944.txt",
                           "web-20261129-030944-.log", "functions", ""}) {
    EXPECT_EQ(LogOf(file), "") << file;
  }
}

class RemoveOldLogsTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& file) const { return folder_.path() + "/" + file; }
  void Make(const std::string& file, int days, const std::string& content = "") {
    ASSERT_TRUE(WriteFileAtomically(PathOf(file), content).ok());
    timespec times[2];
    times[0] = times[1] = absl::ToTimespec(absl::Now() - absl::Hours(24) * days);
    ASSERT_EQ(::utimensat(AT_FDCWD, PathOf(file).c_str(), times, 0), 0);
  }
  size_t Remove(std::vector<std::string> needed = {}, uint64_t bytes = 0) {
    return RemoveOldLogs(folder_.path(), {absl::Hours(24) * 30, bytes}, [&](const NamedLog& log) {
      return std::find(needed.begin(), needed.end(), log.log) != needed.end();
    });
  }
  std::vector<std::string> Left() const { return ListDirectory(folder_.path()).value(); }

  const TemporaryDirectory folder_ =
      TemporaryDirectory::Make(testing::TempDir(), "rekindle_old_logs_test.").value();
};

TEST_F(RemoveOldLogsTest, OldOnesGoWithWhatTheyWereRotatedTo) {
  Make("a-20261001-000000.log", 31);
  Make("a-20261001-000000.log.1.gz", 31, "x");
  Make("b-20261001-000000.log", 29);
  Make("b-20261001-000000.log.1.gz", 31, "x");
  Make("mine.log", 400);
  EXPECT_EQ(Remove(), 3u);
  EXPECT_THAT(Left(), UnorderedElementsAre("b-20261001-000000.log", "mine.log"));
}

TEST_F(RemoveOldLogsTest, WhatIsNeededStays) {
  Make("a-20261001-000000.log", 31);
  Make("a-20261001-000000.log.1", 31);
  Make("b-20261001-000000.log", 31);
  EXPECT_EQ(Remove({"a-20261001-000000.log"}), 1u);
  EXPECT_THAT(Left(), UnorderedElementsAre("a-20261001-000000.log", "a-20261001-000000.log.1"));
}

TEST_F(RemoveOldLogsTest, TheOldestGoWhereTheyTakeTooMuchRoom) {
  const std::string much(1 << 20, 'x');
  Make("a-20261001-000000.log", 5, much);
  Make("a-20261001-000000.log.1", 6, much);
  Make("b-20261001-000000.log", 4, much);
  Make("needed-20261001-000000.log", 9, much);
  EXPECT_EQ(Remove({"needed-20261001-000000.log"}, 4 * much.size()), 0u);
  EXPECT_EQ(Remove({"needed-20261001-000000.log"}, 2 * much.size() + much.size() / 2), 1u);
  EXPECT_THAT(Left(), UnorderedElementsAre("a-20261001-000000.log", "b-20261001-000000.log",
                                           "needed-20261001-000000.log"));
  EXPECT_EQ(Remove({}, 1), 3u);
}

TEST_F(RemoveOldLogsTest, WhatWasWrittenTodayStaysHoweverLarge) {
  const std::string much(1 << 20, 'x');
  Make("a-20261001-000000.log", 0, much);
  Make("b-20261001-000000.log", 2, much);
  EXPECT_EQ(Remove({}, 1), 1u);
  EXPECT_THAT(Left(), UnorderedElementsAre("a-20261001-000000.log"));
}

TEST_F(RemoveOldLogsTest, WhoeverHasTheMostGivesWayFirst) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can make files of others";
  const std::string much(1 << 20, 'x');
  Make("small-20261001-000000.log", 9, much);
  Make("old-20261001-000000.log", 3, much);
  Make("young-20261001-000000.log", 2, much);
  for (const char* file : {"old-20261001-000000.log", "young-20261001-000000.log"})
    ASSERT_EQ(::chown(PathOf(file).c_str(), 1234, 1234), 0);
  EXPECT_EQ(Remove({}, 2 * much.size() + much.size() / 2), 1u);
  EXPECT_THAT(Left(), UnorderedElementsAre("small-20261001-000000.log", "young-20261001-000000.log"));
  // Nor in the place of what is too young to go.
  Make("today-20261001-000000.log", 0, much + much);
  ASSERT_EQ(::chown(PathOf("today-20261001-000000.log").c_str(), 1234, 1234), 0);
  EXPECT_EQ(Remove({}, 2 * much.size()), 1u);
  EXPECT_THAT(Left(), UnorderedElementsAre("small-20261001-000000.log", "today-20261001-000000.log"));
}

TEST_F(RemoveOldLogsTest, WhatIsOpenStays) {
  Make("quiet-20261001-000000.log", 31);
  {
    const UniqueFd job(::open(PathOf("quiet-20261001-000000.log").c_str(), O_WRONLY | O_APPEND));
    ASSERT_TRUE(job.valid());
    EXPECT_EQ(Remove(), 0u);
  }
  EXPECT_EQ(Remove(), 1u);
}

TEST_F(RemoveOldLogsTest, LinksAndFoldersStay) {
  Make("target", 31);
  ASSERT_EQ(::symlink(PathOf("target").c_str(), PathOf("a-20261001-000000.log").c_str()), 0);
  ASSERT_EQ(::mkdir(PathOf("b-20261001-000000.log").c_str(), 0700), 0);
  EXPECT_EQ(Remove(), 0u);
  EXPECT_EQ(RemoveOldLogs(PathOf("none"), LogBounds(), [](const NamedLog&) { return false; }), 0u);
}

}  // namespace
}  // namespace rekindle::daemon
