// A catalog whose daemon is killed, whose disk is full, damaged, away, or another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_small_disk.h"
#include "functions/function_catalog_for_tests.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As a backup that was brought back under a daemon that runs.
TEST_F(FunctionCatalogTest, WhatAnotherStoreInItsPlaceHasStaysAsItIs) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  std::filesystem::copy(Store(""), Path("backup"), std::filesystem::copy_options::recursive);
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec(), /*replace=*/true).ok());
  ASSERT_TRUE(catalog->HasItsFolder());
  std::filesystem::rename(Store(""), Path("own"));
  EXPECT_FALSE(catalog->HasItsFolder());
  EXPECT_TRUE(absl::IsUnavailable(catalog->Remove("fn")));
  std::filesystem::rename(Path("backup"), Store(""));
  const std::string record = ReadFile(Store("functions/fn/function.json")).value();
  EXPECT_FALSE(catalog->HasItsFolder());
  EXPECT_TRUE(absl::IsUnavailable(SetImages(*catalog, 2, {"deps/python:bare", "", {}})));
  EXPECT_TRUE(absl::IsUnavailable(catalog->Remove("fn")));
  EXPECT_EQ(ReadFile(Store("functions/fn/function.json")).value_or(""), record);
  // Its own, or a copy of that, it goes on with.
  std::filesystem::remove_all(Store(""));
  std::filesystem::copy(Path("own"), Store(""), std::filesystem::copy_options::recursive);
  EXPECT_TRUE(catalog->HasItsFolder());
  EXPECT_TRUE(SetImages(*catalog, 2, {"deps/python:bare", "", {}}).ok());
  EXPECT_TRUE(catalog->Remove("fn").ok());
}

// Ends the process with SIGKILL at each of the steps; what there was before, or what was to be, is there
// afterwards.
TEST_F(FunctionCatalogTest, AKillAtAnyPointLeavesTheOldOrTheNewRevision) {
  { ASSERT_TRUE(Deploy(*Open(), Spec()).ok()); }
  const std::pair<const char*, bool> steps[] = {{"stage", false}, {"copy", false},   {"sync", false},
                                                {"place", false}, {"record", false}, {"retire", true}};
  int version = 1;
  // So many that progress is told in the middle of the copy.
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(OpenFile(Path(absl::StrCat("code/", i)), O_WRONLY | O_CREAT, 0644).ok());
  }
  for (const auto& [step, is_new] : steps) {
    const std::string before = absl::StrCat("version ", version);
    SetCode(absl::StrCat("version ", ++version));
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string at = step;
      auto catalog = Open([&](absl::string_view name) {
        if (name == at) ::raise(SIGKILL);
      });
      DeployOptions options;
      options.replace = true;
      options.progress = [&](uint64_t) {
        if (at == "copy") ::raise(SIGKILL);
      };
      catalog->Deploy(Spec(), {::geteuid(), ::getegid(), {}}, options).IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL) << step;
    auto catalog = Open();
    EXPECT_EQ(CodeOf(*catalog), is_new ? absl::StrCat("version ", version) : before) << step;
    EXPECT_THAT(Files("functions"), ElementsAre(".lock", "fn")) << step;
    EXPECT_THAT(Files("functions/fn"),
                ElementsAre(absl::StrCat(catalog->Find("fn")->revision), "function.json"))
        << step;
    if (!is_new) --version;
  }
}

// While its images are made, which takes longest.
TEST_F(FunctionCatalogTest, AKillWhileANewRevisionIsPreparedLeavesTheOldOne) {
  for (const bool first : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      DeployOptions options;
      options.replace = true;
      options.prepare = [](const FunctionRecord& staged, FunctionImages*) {
        if (PathExists(staged.folder->code() + "/app.py")) ::raise(SIGKILL);
        return absl::OkStatus();
      };
      Open()->Deploy(Spec(), {::geteuid(), ::getegid(), {}}, options).IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
    auto catalog = Open();
    if (first) {
      EXPECT_TRUE(catalog->List().empty());
      EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
      ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
      SetCode("version 2");
    } else {
      EXPECT_EQ(CodeOf(*catalog), "version 1");
      EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
    }
  }
}

TEST_F(FunctionCatalogTest, AKillInTheFirstDeploymentOrTheRemovalLeavesNothing) {
  for (const char* step : {"stage", "sync", "place", "record", "clear"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto catalog = Open([&](absl::string_view name) {
        if (name == step) ::raise(SIGKILL);
      });
      Deploy(*catalog, Spec()).IgnoreError();
      catalog->Remove("fn").IgnoreError();
      ::_exit(0);
    }
    int state = 0;
    ASSERT_EQ(::waitpid(child, &state, 0), child);
    ASSERT_TRUE(WIFSIGNALED(state)) << step;
    auto catalog = Open();
    EXPECT_TRUE(catalog->List().empty()) << step;
    EXPECT_THAT(Files("functions"), ElementsAre(".lock")) << step;
  }
}

TEST_F(FunctionCatalogTest, AFullDiskFailsTheDeploymentAlone) {
  OnSmallDisk(Store(""), "1m", [&] {
    auto catalog = Open();
    EXPECT_TRUE(Deploy(*catalog, Spec()).ok());
    EXPECT_TRUE(WriteFileAtomically(Path("code/large"), std::string(2 << 20, 'x'), 0644).ok());
    absl::Status status = Deploy(*catalog, Spec(), true).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is full"));
    EXPECT_EQ(CodeOf(*catalog), "version 1");
    EXPECT_THAT(Files("functions"), ElementsAre(".lock", "fn"));
  });
}

TEST_F(FunctionCatalogTest, ADamagedEntryIsNamedAndHarmsNoOther) {
  {
    auto catalog = Open();
    for (const char* name : {"good", "garbled", "codeless"}) ASSERT_TRUE(Deploy(*catalog, Spec(name)).ok());
  }
  ASSERT_TRUE(WriteFileAtomically(Store("functions/garbled/function.json"), "{\"format\": 1, ").ok());
  ASSERT_TRUE(RemoveTree(Store("functions/codeless/1/code")).ok());
  ::testing::internal::CaptureStderr();
  auto catalog = Open();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("function garbled is damaged"));
  EXPECT_THAT(log, HasSubstr("function codeless is damaged"));
  EXPECT_EQ(CodeOf(*catalog, "good"), "version 1");
  size_t damaged = 0;
  for (const FunctionRecord& record : catalog->List()) damaged += !record.trouble.ok();
  EXPECT_EQ(catalog->List().size(), 3u);
  EXPECT_EQ(damaged, 2u);
  absl::Status status = catalog->Find("garbled").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("function.json"));

  auto repaired = Deploy(*catalog, Spec("garbled"), true);
  ASSERT_TRUE(repaired.ok()) << repaired.status();
  EXPECT_FALSE(repaired->unchanged);
  EXPECT_EQ(CodeOf(*catalog, "garbled"), "version 1");
  EXPECT_TRUE(catalog->Remove("codeless").ok());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock", "garbled", "good"));
}

TEST_F(FunctionCatalogTest, OneOfANewerVersionIsLeftToThat) {
  ASSERT_TRUE(Deploy(*Open(), Spec()).ok());
  const std::string path = Store("functions/fn/function.json");
  const std::string text = ReadFile(path).value();
  for (const std::string& newer : {std::string(R"({"format": 2, "name": "fn"})"),
                                   absl::StrCat("{\"of_later\": 1, ", text.substr(text.find('{') + 1))}) {
    ASSERT_TRUE(WriteFileAtomically(path, newer).ok());
    auto catalog = Open();
    for (const absl::Status& refused :
         {catalog->Find("fn").status(), Deploy(*catalog, Spec(), true).status(), catalog->Remove("fn")}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("use a newer Rekindle"));
    }
    EXPECT_TRUE(catalog->ReadAgain().empty());
    EXPECT_EQ(ReadFile(path).value(), newer);
  }
  // And that one finds it as it was.
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  EXPECT_EQ(CodeOf(*Open(), "fn"), "version 1");
}

TEST_F(FunctionCatalogTest, OneThatCantBeReadNowIsReadAgain) {
  ASSERT_TRUE(Deploy(*Open(), Spec()).ok());
  const std::string path = Store("functions/fn/function.json");
  const std::string text = ReadFile(path).value();
  // No regular file: as any error of the disk.
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_TRUE(MakeDirectories(path + "/in-the-way").ok());
  auto catalog = Open();
  for (const absl::Status& refused :
       {catalog->Find("fn").status(), Deploy(*catalog, Spec(), true).status(), catalog->Remove("fn")}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  }
  EXPECT_TRUE(catalog->ReadAgain().empty());
  ASSERT_TRUE(RemoveTree(path).ok());
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  const std::vector<FunctionRecord> read = catalog->ReadAgain();
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].name(), "fn");
  EXPECT_TRUE(catalog->ReadAgain().empty());
  EXPECT_EQ(CodeOf(*catalog, "fn"), "version 1");
  EXPECT_TRUE(catalog->Remove("fn").ok());
}

TEST_F(FunctionCatalogTest, WhatTheStoreHasLostIsDeployedAgain) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  ASSERT_TRUE(RemoveTree(Store("functions")).ok());
  auto deployed = Deploy(*catalog, Spec(), /*replace=*/true);
  ASSERT_TRUE(deployed.ok()) << deployed.status();
  EXPECT_FALSE(deployed->unchanged);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(Files("functions/fn").size(), 2u);
  EXPECT_TRUE(IsRefusedToOthers());
}

TEST_F(FunctionCatalogTest, FunctionsOfAnotherStoreAreNotWrittenOver) {
  const std::string other = Path("other");
  {
    auto catalog = Open();
    ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  }
  ASSERT_EQ(::rename(Store("functions").c_str(), other.c_str()), 0);
  auto catalog = Open();
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec("mine")).ok());
  ASSERT_TRUE(RemoveTree(Store("functions")).ok());
  ASSERT_EQ(::rename(other.c_str(), Store("functions").c_str()), 0);
  auto refused = Deploy(*catalog, Spec());
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(refused.status().message(), HasSubstr("such as 'fn': start the daemon anew"));
  EXPECT_EQ(*ReadFile(Store("functions/fn/1/code/app.py")), "version 1");
}

}  // namespace
}  // namespace rekindle::functions
