#include "criu/installation.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::criu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What answers here in CRIU's place are real programs (shell scripts) run by the real search.
class InstallationTest : public ::testing::Test {
 protected:
  InstallationTest() : folder_(*TemporaryDirectory::Make("/tmp", "rk-installation-")) {
    if (const char* value = ::getenv("REKINDLE_CRIU")) before_ = value;
  }
  ~InstallationTest() override {
    if (before_.has_value()) {
      ::setenv("REKINDLE_CRIU", before_->c_str(), 1);
    } else {
      ::unsetenv("REKINDLE_CRIU");
    }
  }

  std::string WriteProgram(const std::string& name, const std::string& script) {
    std::string path = absl::StrCat(folder_.path(), "/", name);
    EXPECT_TRUE(MakeDirectories(path.substr(0, path.rfind('/'))).ok());
    EXPECT_TRUE(WriteFileAtomically(path, "#!/bin/sh\n" + script + "\n", 0755).ok());
    return path;
  }

  static absl::StatusOr<Installation> Find(const std::string& choice) {
    ::setenv("REKINDLE_CRIU", choice.c_str(), 1);
    return FindCriu();
  }

  TemporaryDirectory folder_;
  std::optional<std::string> before_;
};

TEST_F(InstallationTest, ProgramIsAskedOnceUntilItChanges) {
  std::string calls = folder_.path() + "/calls";
  std::string path = WriteProgram("criu", "echo x >> " + calls + "\necho Version: 4.2.1\necho GitID: 0");
  absl::StatusOr<Installation> criu = Find(path);
  ASSERT_TRUE(criu.ok()) << criu.status();
  EXPECT_THAT(criu->command, ElementsAre(path));
  EXPECT_EQ(criu->version, (Version{4, 2, 1}));
  EXPECT_EQ(criu->origin, "REKINDLE_CRIU");
  ASSERT_TRUE(Find(path).ok());
  EXPECT_EQ(*ReadFile(calls), "x\n");

  WriteProgram("criu", "echo Version: 5.0");
  timespec other_time[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), other_time, 0), 0);
  criu = Find(path);
  ASSERT_TRUE(criu.ok()) << criu.status();
  EXPECT_EQ(criu->version.ToString(), "5.0");
}

TEST_F(InstallationTest, PrefixWithItsOwnLoader) {
  std::string program = WriteProgram("usr/sbin/criu", "exit 1");
  // Stands where the loader does, gets the program and the question, and answers like it.
  std::string loader =
      WriteProgram("lib64/ld-linux-x86-64.so.2", "test \"$1\" = --library-path && test \"$3\" = " + program +
                                                     " && test \"$4\" = --version && echo Version: 4.3");
  ASSERT_TRUE(MakeDirectories(folder_.path() + "/usr/lib/x86_64-linux-gnu").ok());
  absl::StatusOr<Installation> criu = Find(folder_.path());
  ASSERT_TRUE(criu.ok()) << criu.status();
  ASSERT_EQ(criu->command.size(), 4u);
  EXPECT_EQ(criu->command[0], loader);
  EXPECT_THAT(criu->command[2], HasSubstr(folder_.path() + "/usr/lib/x86_64-linux-gnu"));
  EXPECT_EQ(criu->command[3], program);
}

// A loader that was not seen would make another program of it, and one that could not be asked a broken one.
TEST_F(InstallationTest, WhatCannotBeLookedAtIsNotMissing) {
  WriteProgram("usr/sbin/criu", "exit 1");
  WriteProgram("lib64/ld-linux-x86-64.so.2", "echo Version: 4.3");
  for (int left = 0; left < 3; ++left) {
    const FewDescriptorsLeft few(left);
    EXPECT_EQ(Find(folder_.path()).status().code(), absl::StatusCode::kResourceExhausted) << left;
    ::unsetenv("REKINDLE_CRIU");
    EXPECT_FALSE(absl::IsUnimplemented(FindCriu().status())) << FindCriu().status();
  }
  ASSERT_TRUE(Find(folder_.path()).ok());
}

TEST_F(InstallationTest, TooOldBrokenAndMissing) {
  absl::StatusOr<Installation> criu = Find(WriteProgram("old", "echo Version: 3.17.1"));
  EXPECT_EQ(criu.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(criu.status().message()), HasSubstr("3.17.1"));
  EXPECT_THAT(std::string(criu.status().message()), HasSubstr("scripts/setup.sh"));

  EXPECT_FALSE(Find(WriteProgram("silent", "exit 0")).ok());
  EXPECT_FALSE(Find(WriteProgram("crashing", "kill -9 $$")).ok());
  EXPECT_FALSE(Find(WriteProgram("garbage", "echo Version: x.y")).ok());
  criu = Find(folder_.path() + "/none");
  EXPECT_EQ(criu.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(criu.status().message()), HasSubstr("scripts/setup.sh"));
}

TEST_F(InstallationTest, VersionsCompare) {
  EXPECT_LT((Version{4, 1, 9}), kOldestSupported);
  EXPECT_GT((Version{4, 10, 0}), (Version{4, 3, 0}));
  EXPECT_EQ((Version{4, 2, 0}).ToString(), "4.2");
}

}  // namespace
}  // namespace rekindle::criu
