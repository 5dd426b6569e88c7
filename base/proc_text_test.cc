#include "base/proc_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file.h"

namespace rekindle {
namespace {

class ProcTextTest : public testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteFileAtomically(path_, text).ok()); }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    ForEachLineOf(path_, [&](absl::string_view line) {
      lines.emplace_back(line);
      return line != "last";
    });
    return lines;
  }

  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "proc-text-").value();
  const std::string path_ = folder_.path() + "/text";
};

TEST_F(ProcTextTest, NoMoreThanIsAskedFor) {
  Write(std::string(100000, 'a'));
  EXPECT_EQ(BeginningOfFile(path_, 10).size(), 10u);
  EXPECT_EQ(BeginningOfFile(path_, 5000).size(), 5000u);
  EXPECT_EQ(BeginningOfFile(path_, 1 << 20), std::string(100000, 'a'));
  EXPECT_EQ(BeginningOfFile(folder_.path() + "/none", 10), "");
}

TEST_F(ProcTextTest, LinesAcrossWhatIsReadAtOnce) {
  const std::string long_line(40000, 'x');
  Write("first\n\n" + long_line + "\nwithout an end");
  EXPECT_EQ(Lines(), (std::vector<std::string>{"first", "", long_line, "without an end"}));
  Write("last\nnever seen\n");
  EXPECT_EQ(Lines(), std::vector<std::string>{"last"});
  Write("");
  EXPECT_TRUE(Lines().empty());
  ASSERT_TRUE(RemoveTree(path_).ok());
  EXPECT_TRUE(Lines().empty());
}

TEST(EnvironmentOfTest, IsThatOfTheBeginning) {
  ASSERT_EQ(::setenv("PROC_TEXT_TEST", "set later", 1), 0);
  const std::string environment = EnvironmentOf(::getpid());
  EXPECT_THAT(environment, testing::HasSubstr("PATH="));
  EXPECT_EQ(environment.back(), '\0');
  EXPECT_THAT(environment, testing::Not(testing::HasSubstr("set later")));
  EXPECT_EQ(EnvironmentOf(1 << 23), "");  // no PID is that high
}

}  // namespace
}  // namespace rekindle
