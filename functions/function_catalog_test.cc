#include "functions/function_catalog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_user.h"
#include "dedup_store/store.h"
#include "functions/function_catalog_for_tests.h"
#include "functions/sealed_folder.h"

namespace rekindle::functions {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(FunctionCatalogTest, OtherSettingsAreGivenToTheCopyThatIsDeployed) {
  auto catalog = Open();
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  ASSERT_TRUE(Deploy(*catalog, spec).ok());
  SetCode("version 2");
  std::filesystem::remove_all(Path("layer"));
  DeployOptions options;
  options.replace = true;
  options.code_of = *catalog->Find("fn");
  const Owner owner{::geteuid(), ::getegid(), {}};
  auto same = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(same->unchanged);
  spec.timeout_ms = 9000;
  auto adjusted = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(adjusted.ok()) << adjusted.status();
  EXPECT_TRUE(adjusted->adjusted);
  EXPECT_EQ(adjusted->record.revision, 1u);
  spec.memory_bytes = kLeastMemoryBytes;
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()))
      << "another call has set its time-out";
  options.code_of = *catalog->Find("fn");
  auto set = catalog->Deploy(spec, owner, options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_FALSE(set->adjusted || set->unchanged);
  EXPECT_EQ(set->record.revision, 2u);
  EXPECT_EQ(set->record.code_sha256, options.code_of->code_sha256);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(ReadFile(set->record.folder->layer(0) + "/lib.txt").value_or(""), "layer");
  EXPECT_EQ(catalog->Find("fn")->spec, spec);

  // Of a revision that another call has replaced meanwhile.
  spec.memory_bytes *= 2;
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()));
  EXPECT_EQ(catalog->Find("fn")->revision, 2u);
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_TRUE(absl::IsAborted(catalog->Deploy(spec, owner, options).status()));
  EXPECT_TRUE(absl::IsNotFound(catalog->Find("fn").status()));
}

TEST_F(FunctionCatalogTest, ADeployedFunctionOutlivesItsSourceAndTheProcess) {
  FunctionSpec spec = Spec();
  spec.layers = {Path("layer")};
  spec.environment = {{"TABLE", "orders"}};
  ASSERT_TRUE(WriteFileAtomically(Path("layer/lib.txt"), "layer").ok());
  std::string digest;
  {
    auto catalog = Open();
    auto deployed = Deploy(*catalog, spec);
    ASSERT_TRUE(deployed.ok()) << deployed.status();
    EXPECT_FALSE(deployed->unchanged);
    EXPECT_EQ(deployed->record.revision, 1u);
    digest = deployed->record.code_sha256;
    ASSERT_TRUE(SetImages(*catalog, 1, {"dep:1", "fn:1", {"numpy"}}).ok());
  }
  ASSERT_TRUE(RemoveTree(Path("code")).ok());
  ASSERT_TRUE(RemoveTree(Path("layer")).ok());
  auto catalog = Open();
  auto record = catalog->Find("fn");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->spec, spec);
  EXPECT_EQ(record->owner, (Owner{::geteuid(), ::getegid(), {}}));
  EXPECT_EQ(record->code_sha256, digest);
  EXPECT_EQ(record->code_bytes, 14u);
  EXPECT_EQ(record->images, (FunctionImages{"dep:1", "fn:1", {"numpy"}}));
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_EQ(*ReadFile(record->folder->layer(0) + "/lib.txt"), "layer");
}

TEST_F(FunctionCatalogTest, ANewRevisionReplacesTheOldOneAndTheSameOneIsRecognised) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  absl::Status again = Deploy(*catalog, Spec()).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--replace"));
  ASSERT_TRUE(SetImages(*catalog, 1, {"dep:1", "fn:1", {}}).ok());

  auto unchanged = Deploy(*catalog, Spec(), true);
  ASSERT_TRUE(unchanged.ok());
  EXPECT_TRUE(unchanged->unchanged);
  EXPECT_EQ(unchanged->record.images.function_image, "fn:1");

  SetCode("version 2");
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  auto changed = Deploy(*catalog, Spec(), true);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_FALSE(changed->unchanged);
  EXPECT_EQ(changed->record.revision, 2u);
  EXPECT_EQ(changed->record.images, FunctionImages());
  EXPECT_EQ(CodeOf(*catalog), "version 2");
  EXPECT_EQ(SetImages(*catalog, 1, {"dep:1", "fn:1", {}}).code(), absl::StatusCode::kAborted);

  FunctionSpec other = Spec();
  other.environment = {{"N", "7"}};
  auto settings = Deploy(*catalog, other, true);
  ASSERT_TRUE(settings.ok());
  EXPECT_FALSE(settings->unchanged);
  EXPECT_FALSE(settings->adjusted);
  EXPECT_EQ(settings->record.revision, 3u);
}

TEST_F(FunctionCatalogTest, WhatInstancesNeedNotBeStartedAnewForIsNoNewRevision) {
  FunctionSpec spec = Spec();
  {
    auto catalog = Open();
    ASSERT_TRUE(Deploy(*catalog, spec).ok());
    ASSERT_TRUE(SetImages(*catalog, 1, {"dep:1", "fn:1", {}}).ok());
    spec.timeout_ms = 7;
    spec.max_instances = 3;
    spec.description = "quicker";
    DeployOptions options;
    options.replace = true;
    options.prepare = [](const FunctionRecord&, FunctionImages*) { return absl::InternalError("again"); };
    auto adjusted = catalog->Deploy(spec, {::geteuid(), ::getegid(), {}}, options);
    ASSERT_TRUE(adjusted.ok()) << adjusted.status();
    EXPECT_TRUE(adjusted->adjusted);
    EXPECT_FALSE(adjusted->unchanged);
    EXPECT_EQ(adjusted->record.revision, 1u);
    EXPECT_TRUE(Deploy(*catalog, spec, true)->unchanged);
    EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  }
  auto catalog = Open();
  auto record = catalog->Find("fn");
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->spec, spec);
  EXPECT_EQ(record->images, (FunctionImages{"dep:1", "fn:1", {}}));
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  // Instances are told whether they are provisioned.
  spec.provisioned = 1;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 2u);
  spec.provisioned = 2;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 2u);
  spec.start_timeout_ms = 90'000;
  EXPECT_EQ(Deploy(*catalog, spec, true)->record.revision, 3u);
}

TEST_F(FunctionCatalogTest, CodeStaysWhileAnInstanceOfItRuns) {
  auto catalog = Open();
  std::shared_ptr<const RevisionFolder> running = Deploy(*catalog, Spec())->record.folder;
  SetCode("version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec(), true).ok());
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 1");
  const std::string path = running->path();
  running.reset();
  EXPECT_FALSE(PathExists(path));
  EXPECT_EQ(CodeOf(*catalog), "version 2");

  running = catalog->Find("fn")->folder;
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_EQ(catalog->Find("fn").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 2");
  // The name is free, while the folder of the old revision is still in use.
  SetCode("version 3");
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  EXPECT_EQ(*ReadFile(running->code() + "/app.py"), "version 2");
  running.reset();
  EXPECT_EQ(CodeOf(*catalog), "version 3");
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
  EXPECT_EQ(catalog->Remove("fn").code(), absl::StatusCode::kNotFound);
}

TEST_F(FunctionCatalogTest, NamesBelongToTheirOwners) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can deploy for others";
  auto catalog = Open();
  const Owner nobody{kNobody, kNobody, {4242}};
  auto deployed = Deploy(*catalog, Spec(), false, nobody);
  ASSERT_TRUE(deployed.ok()) << deployed.status();
  absl::Status theirs = Deploy(*catalog, Spec(), true).status();
  EXPECT_EQ(theirs.code(), absl::StatusCode::kPermissionDenied);
  const std::string folder = deployed->record.folder->path();
  EXPECT_TRUE(IsSealed(folder, nobody));
  catalog.reset();
  EXPECT_EQ(Open()->Find("fn")->owner, nobody);

  // An older version left it to its owner. Whose one is whose record is damaged tells its folder.
  ASSERT_EQ(::removexattr(folder.c_str(), "system.posix_acl_access"), 0);
  for (const char* name : {"", "/code", "/code/app.py"})
    ASSERT_EQ(::chown((folder + name).c_str(), kNobody, kNobody), 0);
  EXPECT_FALSE(IsSealed(folder, nobody));
  EXPECT_TRUE(Open()->Find("fn").ok());
  EXPECT_TRUE(IsSealed(folder, nobody));
  struct stat info {};
  ASSERT_EQ(::stat((folder + "/code/app.py").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 0u);
  ASSERT_TRUE(WriteFileAtomically(Store("functions/fn/function.json"), "damaged").ok());
  catalog = Open();
  ASSERT_EQ(catalog->List().size(), 1u);
  EXPECT_EQ(catalog->List()[0].owner.uid, kNobody);
}

TEST_F(FunctionCatalogTest, ReplacedCodeCountsAsLongAsInstancesRunFromIt) {
  auto catalog = Open();
  const uid_t owner = ::geteuid();
  auto first = Deploy(*catalog, Spec());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(catalog->ledger()->Of(owner), 9u);
  SetCode("a longer version 2");
  ASSERT_TRUE(Deploy(*catalog, Spec(), true).ok());
  EXPECT_EQ(catalog->ledger()->Of(owner), 27u);
  EXPECT_EQ(catalog->ledger()->Of(std::nullopt), 27u);
  EXPECT_EQ(catalog->ledger()->Of(owner + 1), 0u);
  first = absl::UnknownError("no instance has it any more");
  EXPECT_EQ(catalog->ledger()->Of(owner), 18u);
  DeployOptions refused;
  refused.replace = true;
  refused.may_take = [](uint64_t, bool all) {
    return all ? absl::ResourceExhaustedError("no room") : absl::OkStatus();
  };
  SetCode("version 3");
  EXPECT_FALSE(catalog->Deploy(Spec(), {owner, ::getegid(), {}}, refused).ok());
  EXPECT_EQ(catalog->ledger()->Of(owner), 18u);
  catalog.reset();
  catalog = Open();
  EXPECT_EQ(catalog->ledger()->Of(owner), 18u);
  ASSERT_TRUE(catalog->Remove("fn").ok());
  EXPECT_EQ(catalog->ledger()->Of(std::nullopt), 0u);
}

// Functions must reach their code, and nothing else that is in the store.
TEST_F(FunctionCatalogTest, TheWayThroughTheStoreShowsNothingElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can look with the eyes of others";
  store::StoreOptions store_options;
  store_options.path = Store("");
  store_options.create = true;
  ASSERT_TRUE(store::Store::Open(store_options).ok());
  ASSERT_TRUE(WriteFileAtomically(Store("of-another-version"), "x", 0644).ok());
  ASSERT_EQ(::chmod(Store("of-another-version").c_str(), 0644), 0);
  auto catalog = Open();
  struct stat info {};
  ASSERT_EQ(::stat(Store("").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u) << "there is nothing to reach yet";

  const Owner nobody{kNobody, kNobody, {}};
  ASSERT_TRUE(Deploy(*catalog, Spec("theirs"), false, nobody).ok());
  ASSERT_TRUE(Deploy(*catalog, Spec("roots")).ok());
  const std::string own = catalog->Find("theirs")->folder->path();
  size_t seen = 0;
  std::vector<std::string> open;
  std::vector<std::string> all = {Store("")};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(Store("")))
    all.push_back(entry.path());
  absl::Status looked = WithFileRightsOf(nobody, [&] {
    for (const std::string& path : all) {
      ++seen;
      if (UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)).valid()) open.push_back(path);
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(looked.ok()) << looked;
  EXPECT_GT(seen, 10u);
  EXPECT_THAT(open, ::testing::UnorderedElementsAre(own, own + "/code", own + "/code/app.py"));
  // Another user's look at it.
  ASSERT_TRUE(WithFileRightsOf({4711, 4711, {}}, [&] {
                EXPECT_FALSE(UniqueFd(::open((own + "/code/app.py").c_str(), O_RDONLY)).valid());
                return absl::OkStatus();
              }).ok());
}

TEST_F(FunctionCatalogTest, AClosedFolderAboveTheStoreIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can deploy for others";
  ASSERT_EQ(::chmod(directory_->path().c_str(), 0700), 0);
  auto catalog = Open();
  absl::Status status = Deploy(*catalog, Spec(), false, {kNobody, kNobody, {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("can't enter " + directory_->path() + ","));
}

TEST_F(FunctionCatalogTest, WhatThereIsNoRoomForIsNotDeployed) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  SetCode(std::string(40 << 20, 'x'));
  DeployOptions options;
  options.replace = true;
  const Owner owner{::geteuid(), ::getegid(), {}};
  std::vector<std::pair<uint64_t, bool>> asked;
  uint64_t room = 41 << 20;
  options.may_take = [&](uint64_t bytes, bool all) {
    asked.emplace_back(bytes, all);
    return bytes <= room ? absl::OkStatus() : absl::ResourceExhaustedError("no room");
  };
  for (const uint64_t limit : {uint64_t{20} << 20, (uint64_t{40} << 20) - 1}) {
    room = limit;
    asked.clear();
    absl::Status refused = catalog->Deploy(Spec(), owner, options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(asked.front(), std::make_pair(uint64_t{0}, false));
    EXPECT_GT(asked.back().first, limit);
    EXPECT_EQ(CodeOf(*catalog), "version 1");
    EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  }
  room = uint64_t{41} << 20;
  ASSERT_TRUE(catalog->Deploy(Spec(), owner, options).ok());
  EXPECT_TRUE(asked.back().second);
}

TEST_F(FunctionCatalogTest, WhatCouldNotBePreparedOrWasCancelledHasNoEffect) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  SetCode("version 2");
  std::atomic<bool> cancelled{false};
  DeployOptions options;
  options.replace = true;
  options.cancelled = &cancelled;
  options.prepare = [](const FunctionRecord&, FunctionImages*) { return absl::InternalError("no image"); };
  const Owner owner{::geteuid(), ::getegid(), {}};
  absl::Status failed = catalog->Deploy(Spec(), owner, options).status();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("deploying function fn: no image"));
  options.prepare = [&](const FunctionRecord&, FunctionImages*) {
    cancelled = true;
    return absl::OkStatus();
  };
  EXPECT_EQ(catalog->Deploy(Spec(), owner, options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(CodeOf(*catalog), "version 1");
  EXPECT_THAT(Files("functions/fn"), ElementsAre("1", "function.json"));
  cancelled = false;
  options.prepare = [](const FunctionRecord& staged, FunctionImages* images) {
    EXPECT_EQ(*ReadFile(staged.folder->code() + "/app.py"), "version 2");
    images->dependency_image = "dep:2";
    return absl::OkStatus();
  };
  ASSERT_TRUE(catalog->Deploy(Spec(), owner, options).ok());
  EXPECT_EQ(catalog->Find("fn")->images.dependency_image, "dep:2");
  EXPECT_EQ(CodeOf(*catalog), "version 2");
}

// Whoever was quicker is right: the other call's copy of the code goes.
TEST_F(FunctionCatalogTest, ADeploymentHasNoEffectWhenTheFunctionHasChangedMeanwhile) {
  auto catalog = Open();
  const Owner owner{::geteuid(), ::getegid(), {}};
  DeployOptions options;
  options.replace = true;
  std::function<void()> meanwhile;
  options.prepare = [&](const FunctionRecord&, FunctionImages*) {
    meanwhile();
    return absl::OkStatus();
  };
  auto deploy = [&](std::function<void()> change) {
    meanwhile = std::move(change);
    return catalog->Deploy(Spec(), owner, options).status();
  };
  // It was not there before.
  absl::Status late = deploy([&] {
    SetCode("quicker");
    ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(late.message()), HasSubstr("no effect"));
  EXPECT_EQ(CodeOf(*catalog), "quicker");
  SetCode("late");
  late = deploy([&] { ASSERT_TRUE(catalog->Remove("fn").ok()); });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(catalog->List().empty());
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
  // A damaged one was removed, with everything in its folder.
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  catalog.reset();
  ASSERT_TRUE(WriteFileAtomically(Store("functions/fn/function.json"), "{").ok());
  catalog = Open();
  late = deploy([&] { ASSERT_TRUE(catalog->Remove("fn").ok()); });
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted) << late;
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
}

// Settings are given as what is to be other than it is: of two calls at once neither may undo what the other
// one was told has been done.
TEST_F(FunctionCatalogTest, SettingsThatWereChangedWhileOthersWerePreparedStay) {
  auto catalog = Open();
  FunctionSpec spec = Spec();
  ASSERT_TRUE(Deploy(*catalog, spec).ok());
  const Owner owner{::geteuid(), ::getegid(), {}};
  DeployOptions quick;
  quick.replace = true;
  quick.code_of = *catalog->Find("fn");
  DeployOptions slow = quick;
  FunctionSpec other_time = spec;
  other_time.timeout_ms += 1000;
  slow.prepare = [&](const FunctionRecord&, FunctionImages*) {
    const auto adjusted = catalog->Deploy(other_time, owner, quick);
    EXPECT_TRUE(adjusted.ok() && adjusted->adjusted) << adjusted.status();
    return absl::OkStatus();
  };
  spec.environment["X"] = "1";
  const absl::Status late = catalog->Deploy(spec, owner, slow).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("settings were changed"));
  EXPECT_EQ(catalog->Find("fn")->spec, other_time);
  EXPECT_EQ(catalog->Find("fn")->revision, 1u);
}

TEST_F(FunctionCatalogTest, ARevisionThatWasRemovedDoesNotComeAgain) {
  auto catalog = Open();
  auto removed = Deploy(*catalog, Spec());
  ASSERT_TRUE(removed.ok()) << removed.status();
  ASSERT_TRUE(catalog->Remove("fn").ok());
  SetCode("of somebody else");
  auto later = Deploy(*catalog, Spec());
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_GT(later->record.revision, removed->record.revision);
  FunctionImages late;
  late.function_image = "late";
  EXPECT_EQ(SetImages(*catalog, removed->record.revision, late).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(catalog->Find("fn")->images.function_image.empty());
}

TEST_F(FunctionCatalogTest, ChangesOfImagesAtTheSameTimeAreAllNoted) {
  auto catalog = Open();
  ASSERT_TRUE(Deploy(*catalog, Spec()).ok());
  constexpr int kChanges = 20;
  const auto change = [&](std::vector<std::string> FunctionImages::*modules) {
    for (int i = 0; i < kChanges; ++i) {
      auto changed = catalog->ChangeImages("fn", 1, [&](FunctionImages* images) {
        (images->*modules).push_back("m");
        return true;
      });
      EXPECT_TRUE(changed.ok()) << changed.status();
    }
  };
  std::thread one([&] { change(&FunctionImages::dependencies); });
  std::thread other([&] { change(&FunctionImages::not_loaded); });
  one.join();
  other.join();
  auto left = catalog->ChangeImages("fn", 1, [](FunctionImages* images) {
    images->function_image = "not to be noted";
    return false;
  });
  ASSERT_TRUE(left.ok()) << left.status();
  catalog.reset();
  const FunctionImages images = Open()->Find("fn")->images;
  EXPECT_EQ(images.dependencies.size(), size_t{kChanges});
  EXPECT_EQ(images.not_loaded.size(), size_t{kChanges});
  EXPECT_EQ(images.function_image, "");
}

TEST_F(FunctionCatalogTest, OneProcessHasTheCatalog) {
  auto catalog = Open();
  EXPECT_TRUE(IsRefusedToOthers());
}

TEST_F(FunctionCatalogTest, DeploymentsAtTheSameTimeDoNotMix) {
  auto catalog = Open();
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        FunctionSpec spec = Spec(absl::StrCat("fn", t % 2));
        spec.environment = {{"N", absl::StrCat(1000 * t + i)}};
        auto deployed = Deploy(*catalog, spec, true);
        if (deployed.ok()) {
          ++done;
          EXPECT_EQ(*ReadFile(deployed->record.folder->code() + "/app.py"), "version 1");
        } else {
          EXPECT_EQ(deployed.status().code(), absl::StatusCode::kAborted) << deployed.status();
        }
        if (i % 3 == 2) catalog->Remove(spec.name).IgnoreError();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(done.load(), 6);
  for (const FunctionRecord& record : catalog->List())
    EXPECT_EQ(CodeOf(*catalog, record.name()), "version 1");
  for (const char* name : {"fn0", "fn1"}) catalog->Remove(name).IgnoreError();
  EXPECT_THAT(Files("functions"), ElementsAre(".lock"));
}

}  // namespace
}  // namespace rekindle::functions
