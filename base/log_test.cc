#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace rekindle {
namespace {

// What is written to standard error meanwhile, which fits into a pipe.
template <typename Do>
std::string WrittenBy(Do work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  const UniqueFd reading(ends[0]);
  {
    const UniqueFd writing(ends[1]), before(::dup(STDERR_FILENO));
    ::dup2(writing.get(), STDERR_FILENO);
    work();
    ::dup2(before.get(), STDERR_FILENO);
  }
  std::string text(4096, '\0');
  const ssize_t got = ::read(reading.get(), text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

TEST(Log, WritesOneLineAMessageWhateverNamesAreInIt) {
  const std::string written = WrittenBy([] {
    Log(LogLevel::kError, "running /home/u/x\nrekindled: error: the store is damaged\n: it is gone");
  });
  EXPECT_TRUE(absl::EndsWith(
      written, ": error: running /home/u/x | rekindled: error: the store is damaged | : it is gone\n"))
      << written;
  EXPECT_EQ(written.find('\n'), written.size() - 1);
}

TEST(Log, TellsAJournalThePriority) {
  const auto written = [](bool other) {
    return WrittenBy([other] {
      struct stat output;
      if (::fstat(STDERR_FILENO, &output) != 0) return;
      ::setenv("JOURNAL_STREAM", absl::StrCat(output.st_dev, ":", output.st_ino + (other ? 1 : 0)).c_str(),
               1);
      Log(LogLevel::kWarning, "that is low");
      Log(LogLevel::kError, "that is lost");
      ::unsetenv("JOURNAL_STREAM");
    });
  };
  const std::string lines = written(false);
  EXPECT_TRUE(absl::StartsWith(lines, "<4>")) << lines;
  EXPECT_TRUE(absl::StrContains(lines, "\n<3>")) << lines;
  // Where the output is somewhere else again.
  EXPECT_FALSE(absl::StrContains(written(true), "<")) << lines;
}

TEST(LogLine, LeavesTextAlone) {
  const std::string text = "'caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\xa5': \\n is no line break, ~ is plain";
  EXPECT_EQ(LogLine(text), text);
  EXPECT_EQ(LogLine(""), "");
}

TEST(LogLine, JoinsLines) {
  EXPECT_EQ(LogLine("it failed:\n  Error: one\n  Error: two\n\n"), "it failed: | Error: one | Error: two");
}

TEST(LogLine, WritesOrdersToTerminalsAsNumbers) {
  EXPECT_EQ(LogLine("\x1b]0;title\a\r\b\x7f."), "\\x1b]0;title\\x07\\x0d\\x08\\x7f.");
  EXPECT_EQ(LogLine("a\tb"), "a\\x09b");
  EXPECT_EQ(LogLine(absl::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(LogLine("\xc2\x9b"
                    "31m \xc2\x85"
                    "x"),
            "\\xc2\\x9b31m \\xc2\\x85x");
}

TEST(LogLine, WritesOtherBreaksAndTurnsAsNumbers) {
  EXPECT_EQ(LogLine("a\xe2\x80\xa8 \xe2\x80\xae \xe2\x81\xa6z"),
            "a\\xe2\\x80\\xa8 \\xe2\\x80\\xae \\xe2\\x81\\xa6z");
  EXPECT_EQ(LogLine("\xe2\x80\xa6 \xe2\x80\xaf \xe2\x81\xaa|"), "\xe2\x80\xa6 \xe2\x80\xaf \xe2\x81\xaa|");
}

TEST(LogLine, WritesWhatIsNoTextAsNumbers) {
  EXPECT_EQ(LogLine("caf\xe9.txt"), "caf\\xe9.txt");
  EXPECT_EQ(LogLine("a\xe2\x82"), "a\\xe2\\x82");
}

}  // namespace
}  // namespace rekindle
