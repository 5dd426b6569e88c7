#include "daemon/loaded_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/file.h"

namespace rekindle::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

constexpr absl::Duration kMoment = absl::Seconds(1), kWhile = absl::Hours(1), kDay = absl::Hours(24);
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
  // The clock, so much later than now, while it is so far ahead of that of files.
  static ClockReading After(absl::Duration time, absl::Duration ahead = absl::ZeroDuration()) {
    const ClockReading now = ClockReading::Now();
    return {now.unix_ns + absl::ToInt64Nanoseconds(time + ahead),
            now.boot_ns + absl::ToInt64Nanoseconds(time)};
  }
  // As it comes back from where it is kept. Without more the load begins in an hour, and takes a minute.
  LoadedFiles Loaded(const std::string& paths, const ClockReading& began = After(kWhile),
                     const ClockReading& ended = After(kWhile + absl::Minutes(1))) {
    LoadedFiles loaded(kCommand);
    loaded.Add(::getpid(), paths, began, nullptr, [&ended] { return ended; });
    auto kept = LoadedFiles::Decode(loaded.Encode());
    EXPECT_TRUE(kept.ok()) << kept.status();
    return *std::move(kept);
  }
  bool IsTakenForChanged(const ClockReading& began, const ClockReading& ended) {
    return Loaded(module_, began, ended).Change(kCommand).has_value();
  }

  std::optional<TemporaryDirectory> folder_;
  std::string module_;
};

TEST_F(LoadedFilesTest, NothingHasChanged) {
  const LoadedFiles loaded = Loaded(module_);
  EXPECT_GT(loaded.size(), 1);  // this program, and what it has mapped
  EXPECT_EQ(loaded.Change(kCommand), std::nullopt);
}

TEST_F(LoadedFilesTest, AModuleOfAnotherSizeOrTime) {
  const LoadedFiles loaded = Loaded(module_);
  Write(module_, "longer", 1'000);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
  Write(module_, "2 ", 2'000);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
  ASSERT_EQ(::unlink(module_.c_str()), 0);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " is not there any more"));
}

TEST_F(LoadedFilesTest, AnotherRuntime) {
  const LoadedFiles loaded = Loaded("");
  EXPECT_THAT(loaded.Change({kCommand[0], "/newer/bootstrap.py"}),
              Optional(HasSubstr("/newer/bootstrap.py")));
}

TEST_F(LoadedFilesTest, WhatChangedWhileItWasLoaded) {
  LoadedFiles loaded(kCommand);
  const ClockReading began = ClockReading::Now();
  Write(module_, "2 ", 1'000);
  loaded.Add(::getpid(), module_, began);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
  EXPECT_TRUE(IsTakenForChanged(After(-kWhile), After(kWhile)));
}

TEST_F(LoadedFilesTest, AClockThatIsBehindTheFiles) {
  EXPECT_FALSE(IsTakenForChanged(After(kWhile, -kDay), After(kWhile + kMoment, -kDay)));
  EXPECT_FALSE(IsTakenForChanged(After(-kWhile, -kDay), After(kWhile, -kDay)));
}

TEST_F(LoadedFilesTest, AClockThatIsSetMeanwhile) {
  // Set after the module has changed, and before that.
  EXPECT_TRUE(IsTakenForChanged(After(-kMoment), After(kMoment, -kDay)));
  EXPECT_TRUE(IsTakenForChanged(After(-kMoment, kDay), After(kMoment)));
  EXPECT_TRUE(IsTakenForChanged(After(-kMoment), After(kMoment, kDay)));
  EXPECT_TRUE(IsTakenForChanged(After(-kMoment, -kDay), After(kMoment)));
  // It has changed long before; the clock is set right, which makes a load of a second no longer than that.
  EXPECT_FALSE(IsTakenForChanged(After(kWhile, -kDay), After(kWhile + kMoment)));
}

TEST_F(LoadedFilesTest, WhatAnImageBelowHadLoadedEarlier) {
  const LoadedFiles below = Loaded(module_);
  Write(module_, "3 ", 3'000);
  LoadedFiles loaded = Loaded(module_);
  EXPECT_EQ(loaded.Change(kCommand), std::nullopt);
  loaded.AddBelow(below);
  EXPECT_THAT(loaded.Change(kCommand), Optional(module_ + " has changed"));
}

TEST_F(LoadedFilesTest, OddPathsAreLeftOut) {
  constexpr char kNames[] = "relative.py\0/nowhere/at/all.py\0/dev/null\0/\xff";
  EXPECT_EQ(Loaded(std::string(kNames, sizeof kNames)).size(), Loaded("").size());
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
