#include "daemon/loaded_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

const std::vector<std::string> kCommand = {"/usr/bin/python3", "/runtimes/bootstrap.py"};

class LoadedFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(::testing::TempDir(), "loaded-");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_.emplace(*std::move(folder));
    module_ = folder_->path() + "/module.py";
    Write(module_, "1 ", 1'000);
  }
  static void Write(const std::string& path, const std::string& content, time_t modified_s) {
    ASSERT_TRUE(ReplaceFile(path, content).ok());
    const timespec times[] = {{modified_s, 0}, {modified_s, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  // As it comes back from where it is kept.
  LoadedFiles Loaded(const std::string& paths, int64_t began_ns) {
    LoadedFiles loaded(kCommand);
    loaded.Add(::getpid(), paths, began_ns);
    auto kept = LoadedFiles::Decode(loaded.Encode());
    EXPECT_TRUE(kept.ok()) << kept.status();
    return *std::move(kept);
  }
  static int64_t Later() { return UnixNanos() + 3'600'000'000'000; }

  std::optional<TemporaryDirectory> folder_;
  std::string module_;
};

TEST_F(LoadedFilesTest, NothingHasChanged) {
  const LoadedFiles loaded = Loaded(module_, Later());
  EXPECT_GT(loaded.size(), 1);  // this program, and what it has mapped
  EXPECT_EQ(loaded.Change(kCommand), std::nullopt);
}

TEST_F(LoadedFilesTest, AModuleOfAnotherSizeOrTime) {
  const LoadedFiles loaded = Loaded(module_, Later());
  Write(module_, "longer", 1'000);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
  Write(module_, "2 ", 2'000);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
  ASSERT_EQ(::unlink(module_.c_str()), 0);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " is not there any more"));
}

TEST_F(LoadedFilesTest, AnotherRuntime) {
  const LoadedFiles loaded = Loaded("", Later());
  EXPECT_THAT(loaded.Change({kCommand[0], "/newer/bootstrap.py"}),
              Optional(HasSubstr("/newer/bootstrap.py")));
}

TEST_F(LoadedFilesTest, WhatChangedWhileItWasLoaded) {
  EXPECT_THAT(Loaded(module_, 0).Change(kCommand), Optional(HasSubstr(" has changed")));
}

TEST_F(LoadedFilesTest, WhatAnImageBelowHadLoadedEarlier) {
  const LoadedFiles below = Loaded(module_, Later());
  Write(module_, "3 ", 3'000);
  LoadedFiles loaded = Loaded(module_, Later());
  EXPECT_EQ(loaded.Change(kCommand), std::nullopt);
  loaded.AddBelow(below);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
}

TEST_F(LoadedFilesTest, OddPathsAreLeftOut) {
  constexpr char kNames[] = "relative.py\0/nowhere/at/all.py\0/dev/null\0/\xff";
  EXPECT_EQ(Loaded(std::string(kNames, sizeof kNames), Later()).size(), Loaded("", Later()).size());
}

TEST_F(LoadedFilesTest, DamagedLists) {
  for (const char* bytes :
       {"", "[]", "{}", R"({"format":2,"command":[],"files":[]})", R"({"format":1,"command":[1],"files":[]})",
        R"({"format":1,"command":[],"files":[["/a",1]]})",
        R"({"format":1,"command":[],"files":[["/a",-1,1]]})"}) {
    EXPECT_EQ(LoadedFiles::Decode(bytes).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
}

}  // namespace
}  // namespace rekindle::daemon
