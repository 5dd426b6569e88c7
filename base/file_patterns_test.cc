#include "base/file_patterns.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FilePatternsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_.emplace(TemporaryDirectory::Make("/tmp", "rk_file_patterns_test.").value());
    for (const char* name :
         {"log", "runs/a/events.1", "runs/a/notes", "runs/b/events.2", "runs/b/deep/er/events.3",
          "runs/.hidden/events.4", "runs/[x]/events.5", "runs/a/events.1.rekindle-tail-20260101T000000Z",
          "runs/a/.rekindle-removed.train/1@events.6.kept"}) {
      const std::filesystem::path path = folder_->path() + "/" + name;
      std::filesystem::create_directories(path.parent_path());
      ASSERT_TRUE(WriteFileAtomically(path.string(), "x").ok());
    }
    ASSERT_EQ(::mkfifo((folder_->path() + "/runs/a/events.pipe").c_str(), 0600), 0);
    std::filesystem::create_symlink("../log", folder_->path() + "/runs/events.link");
    std::filesystem::create_directory_symlink("runs", folder_->path() + "/linked");
  }

  std::vector<std::string> Find(const std::vector<std::string>& patterns, size_t most_names = 1000) {
    const UniqueFd root = OpenFile("/", O_PATH | O_DIRECTORY).value();
    std::vector<std::string> full;
    for (const std::string& pattern : patterns) full.push_back(absl::StrCat(folder_->path(), "/", pattern));
    std::set<std::string> found;
    all_ = VisitMatchingFiles(root.get(), full, most_names, [&](const MatchingFile& file) {
      struct stat info;
      EXPECT_EQ(::fstatat(file.folder, file.name.c_str(), &info, AT_SYMLINK_NOFOLLOW), 0);
      EXPECT_EQ(info.st_ino, file.info.st_ino);
      found.insert(file.path.substr(folder_->path().size() + 1));
      return true;
    });
    return {found.begin(), found.end()};
  }

  std::optional<TemporaryDirectory> folder_;
  bool all_ = false;
};

TEST_F(FilePatternsTest, AFileAFolderAndWhatIsNotThere) {
  EXPECT_THAT(Find({"log"}), ElementsAre("log"));
  EXPECT_THAT(Find({"runs/b"}), ElementsAre("runs/b/deep/er/events.3", "runs/b/events.2"));
  EXPECT_THAT(Find({"runs/b/", "log"}), ElementsAre("log", "runs/b/deep/er/events.3", "runs/b/events.2"));
  EXPECT_THAT(Find({"none", "runs/none/*"}), IsEmpty());
  EXPECT_TRUE(all_);
}

TEST_F(FilePatternsTest, Wildcards) {
  EXPECT_THAT(Find({"runs/*/events.?"}),
              ElementsAre("runs/[x]/events.5", "runs/a/events.1", "runs/b/events.2"));
  EXPECT_THAT(Find({"runs/**/events.*"}), ElementsAre("runs/[x]/events.5", "runs/a/events.1",
                                                      "runs/b/deep/er/events.3", "runs/b/events.2"));
  EXPECT_THAT(Find({"**/events.3"}), ElementsAre("runs/b/deep/er/events.3"));
  EXPECT_THAT(Find({"runs/b/**"}), ElementsAre("runs/b/deep/er/events.3", "runs/b/events.2"));
  // A folder that matches stands for all below it.
  EXPECT_THAT(Find({"runs/[b]"}), ElementsAre("runs/b/deep/er/events.3", "runs/b/events.2"));
  EXPECT_THAT(Find({"runs/[x]"}), ElementsAre("runs/[x]/events.5"));
}

TEST_F(FilePatternsTest, LinksAreFollowedBeforeTheFirstWildcardAlone) {
  EXPECT_THAT(Find({"linked/a/events.*"}), ElementsAre("linked/a/events.1"));
  EXPECT_THAT(Find({"*/a/events.*"}), ElementsAre("runs/a/events.1"));
  EXPECT_THAT(Find({"runs/events.*"}), IsEmpty());
  EXPECT_THAT(Find({"runs/events.link"}), IsEmpty());
}

TEST_F(FilePatternsTest, ManyNamesEndTheSearch) {
  Find({""}, 3);
  EXPECT_FALSE(all_);
}

TEST(CheckFilePattern, RefusesWhatIsOnNoDisk) {
  EXPECT_TRUE(CheckFilePattern("/data/runs/*").ok());
  EXPECT_TRUE(CheckFilePattern("/procedures").ok());
  for (const char* pattern : {"", "runs", "/proc", "/proc/self/*", "/dev/shm/x", "/sys/"})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckFilePattern(pattern))) << pattern;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFilePattern("/" + std::string(5000, 'a'))));
  EXPECT_TRUE(CheckFilePatterns(std::vector<std::string>(64, "/a")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFilePatterns(std::vector<std::string>(65, "/a"))));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFilePatterns(std::vector<std::string>{"/a", "b"})));
}

}  // namespace
}  // namespace rekindle
