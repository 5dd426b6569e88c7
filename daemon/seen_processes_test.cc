#include "daemon/seen_processes.h"

#include <string>

#include "base/file.h"
#include "base/machine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SeenProcessesTest : public testing::Test {
 protected:
  const TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "seen-").value();
  const std::string path_ = folder_.path() + "/members/job+1";
};

TEST_F(SeenProcessesTest, AreKnownToTheNextOne) {
  SeenProcesses seen(folder_.path(), "job+1");
  EXPECT_THAT(seen.processes(), IsEmpty());
  seen.Note({{7, 70}, {8, 80}});
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+1").processes(),
              ElementsAre(SeenProcess{7, 70}, SeenProcess{8, 80}));
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+2").processes(), IsEmpty());
  seen.Note({{7, 70}});
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+1").processes(), ElementsAre(SeenProcess{7, 70}));
  seen.Forget();
  EXPECT_FALSE(PathExists(path_));
}

TEST_F(SeenProcessesTest, WhatCouldNotBeWrittenIsWrittenTheNextTime) {
  SeenProcesses seen(folder_.path(), "job+1");
  const std::string folder = folder_.path() + "/members";
  ASSERT_TRUE(WriteFileAtomically(folder, "in its way").ok());
  seen.Note({{7, 70}});
  EXPECT_THAT(seen.processes(), ElementsAre(SeenProcess{7, 70}));
  ASSERT_TRUE(RemoveTree(folder).ok());
  seen.Note({{7, 70}});
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+1").processes(), ElementsAre(SeenProcess{7, 70}));
}

TEST_F(SeenProcessesTest, OfAnotherBootAreNone) {
  SeenProcesses(folder_.path(), "job+1").Note({{7, 70}});
  std::string text = ReadFile(path_).value();
  ASSERT_EQ(text.find(ThisBootId()), 0u);
  text.replace(0, ThisBootId().size(), "00000000-0000-4000-8000-000000000000");
  ASSERT_TRUE(WriteFileAtomically(path_, text).ok());
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+1").processes(), IsEmpty());
}

TEST_F(SeenProcessesTest, WhatIsNoSuchFileHasNone) {
  ASSERT_TRUE(MakeDirectories(folder_.path() + "/members").ok());
  ASSERT_TRUE(WriteFileAtomically(path_, ThisBootId() + "\nx y\n7\n 8\n9 90").ok());
  EXPECT_THAT(SeenProcesses(folder_.path(), "job+1").processes(), ElementsAre(SeenProcess{9, 90}));
}

}  // namespace
}  // namespace rekindle::daemon
