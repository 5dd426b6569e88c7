// Both copies of the catalog are damaged at one place while a process has the store open.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dedup_store/hooked_disk.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class CatalogLossTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    image_.objects[kObject][0] = MakePages(300, 1);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    image_.objects[kObject][0].replace(0, 100 * kPageSize, MakePages(100, 2));
    RK_ASSERT_OK(image_.Commit(*store_, "job:2", "job:1"));
    RK_ASSERT_OK(store_->Remove("job:1"));
    // Frames of the first pack are punched out; only the catalog says so.
    EXPECT_GT(store_->Gc({})->packs_rewritten, 0u);
  }

  void DamageBothCopies(uint64_t from_end = 0) const {
    const std::string folder = options_.path + "/catalog/";
    const std::vector<std::string> names = ListDirectory(folder).value();
    int damaged = 0;
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".a") && !absl::EndsWith(name, ".b")) continue;
      const off_t offset = from_end == 0 ? 86 : static_cast<off_t>(FileSize(folder + name) - from_end);
      const int fd = ::open((folder + name).c_str(), O_RDWR | O_CLOEXEC);
      char byte = 0;
      ASSERT_EQ(::pread(fd, &byte, 1, offset), 1);
      byte = static_cast<char>(byte ^ 0x10);
      ASSERT_EQ(::pwrite(fd, &byte, 1, offset), 1);
      ::close(fd);
      ++damaged;
    }
    ASSERT_EQ(damaged, 2);
  }
  FsckReport Check(bool repair) {
    FsckOptions options;
    options.read_data = true;
    options.repair = repair;
    auto report = store_->Fsck(options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(FsckReport());
  }

  TestImage image_;
};

TEST_F(CatalogLossTest, WhoHasItInMemoryWritesItAnew) {
  DamageBothCopies();
  EXPECT_EQ(Check(false).problems.size(), 1u);
  RK_ASSERT_OK(image_.Commit(*store_, "job:3", "job:2"));
  const FsckReport report = Check(true);
  EXPECT_EQ(report.problems.size(), 1u);
  EXPECT_TRUE(report.lost_images.empty());
  RK_ASSERT_OK(image_.Commit(*store_, "job:4", "job:3"));
  Reopen();
  ExpectWhole();
  EXPECT_EQ(store_->List()->size(), 3u);
  for (const char* name : {"job:2", "job:3", "job:4"}) image_.ExpectIn(*store_, name);
}

// It is not all in memory: another process has added to it.
TEST_F(CatalogLossTest, WhoDoesNotHaveItMakesItAgainFromThePacks) {
  HookedDisk disk([](const HookedDisk::Operation&) { return absl::OkStatus(); });
  {
    StoreOptions options = options_;
    options.io = &disk;  // and so a catalog of its own in memory
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    RK_ASSERT_OK(image_.Commit(**other, "job:3", "job:2"));
  }
  DamageBothCopies(/*from_end=*/30);
  EXPECT_TRUE(absl::IsDataLoss(store_->List().status()));
  const FsckReport report = Check(true);
  EXPECT_TRUE(report.lost_images.empty());
  ASSERT_EQ(report.problems.size(), 1u) << report.problems.back() << ": what gc gave back is no damage";
  for (const char* name : {"job:2", "job:3"}) image_.ExpectIn(*store_, name);
  RK_ASSERT_OK(image_.Commit(*store_, "job:4", "job:3"));
  Reopen();
  ExpectWhole();
}

// Whoever makes it again looks at it, and at the packs, only when nobody can commit any more.
TEST_F(CatalogLossTest, WhatIsCommittedWhileItIsBeingMadeAgainStays) {
  for (const bool written_anew : {false, true}) {
    SCOPED_TRACE(written_anew);
    DamageBothCopies();
    const std::string name = absl::StrCat("late:", written_anew);
    bool begun = false;
    // By the process that has the catalog in memory.
    auto meanwhile = [&] {
      RK_ASSERT_OK(image_.Commit(*store_, name, "job:2"));
      if (written_anew) Check(true);
    };
    HookedDisk disk([&](const HookedDisk::Operation& operation) {
      if (operation.call == HookedDisk::Call::kLock && operation.exclusive && !std::exchange(begun, true))
        meanwhile();
      return absl::OkStatus();
    });
    StoreOptions options = options_;
    options.io = &disk;
    options.rebuild_catalog = true;
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    EXPECT_TRUE(begun);
    for (Store* store : {store_.get(), other->get()}) {
      for (const std::string& there : {std::string("job:2"), name}) image_.ExpectIn(*store, there);
    }
    other->reset();
    // One that was made again tells of what gc gave back.
    EXPECT_EQ(Check(true).problems.empty(), written_anew);
    ExpectWhole();
  }
}

TEST_F(CatalogLossTest, WhatGcGaveBackIsNoDamageOfACatalogThatWasMadeAgain) {
  store_.reset();
  DamageBothCopies();
  options_.rebuild_catalog = true;
  Reopen();
  const FsckReport report = Check(true);
  ASSERT_EQ(report.problems.size(), 1u) << report.problems.back();
  EXPECT_TRUE(report.lost_images.empty());
  options_.rebuild_catalog = false;
  Reopen();
  ExpectWhole();
  image_.ExpectIn(*store_, "job:2");
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
}

// As of a copy of the store that left it out.
TEST_F(CatalogLossTest, AMissingFolderIsMadeAgainFromThePacks) {
  store_.reset();
  RK_ASSERT_OK(RemoveTree(options_.path + "/catalog"));
  const absl::Status refused = Store::Open(options_).status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "fsck --repair")) << refused;
  options_.rebuild_catalog = true;
  Reopen();
  EXPECT_TRUE(Check(true).lost_images.empty());
  options_.rebuild_catalog = false;
  Reopen();
  ExpectWhole();
  image_.ExpectIn(*store_, "job:2");
  RK_ASSERT_OK(image_.Commit(*store_, "job:3", "job:2"));
}

// As where both were left behind, or their file system is not mounted: gc would take them for leftovers
// later.
TEST_F(CatalogLossTest, AMissingFolderIsNotMadeAgainWithoutPacks) {
  store_.reset();
  RK_ASSERT_OK(RemoveTree(options_.path + "/catalog"));
  const std::string packs = options_.path + "/packs", away = options_.path + "/away";
  for (const bool folder : {false, true}) {
    SCOPED_TRACE(folder);
    ASSERT_EQ(::rename(packs.c_str(), away.c_str()), 0);
    if (folder) RK_ASSERT_OK(MakeDirectories(packs, 0700));
    options_.rebuild_catalog = true;
    const absl::Status refused = Store::Open(options_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "mounted")) << refused;
    if (folder) RK_ASSERT_OK(RemoveTree(packs));
    ASSERT_EQ(::rename(away.c_str(), packs.c_str()), 0);
  }
  Reopen();
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_TRUE(Check(true).lost_images.empty());
  image_.ExpectIn(*store_, "job:2");
}

// Its functions and limits lie there, too.
TEST_F(CatalogLossTest, AStoreThatHadNoImagesGetsItsCatalogBack) {
  RK_ASSERT_OK(store_->Remove("job:2"));
  RK_ASSERT_OK(store_->Gc({}));
  store_.reset();
  RK_ASSERT_OK(RemoveTree(options_.path + "/catalog"));
  options_.rebuild_catalog = true;
  Reopen();
  EXPECT_TRUE(store_->List()->empty());
  options_.rebuild_catalog = false;
  Reopen();
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
  ExpectWhole();
}

// By hand, while it is open.
TEST_F(CatalogLossTest, AFolderThatVanishesIsMissedByNameAndMadeAgain) {
  RK_ASSERT_OK(RemoveTree(options_.path + "/catalog"));
  const std::vector<absl::Status> all = {
      store_->List().status(), image_.Commit(*store_, "job:3", "job:2").status(), store_->Remove("job:2"),
      store_->Gc({}).status(), store_->Fsck({}).status()};
  for (const absl::Status& refused : all) {
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "fsck --repair")) << refused;
  }
  EXPECT_FALSE(PathExists(options_.path + "/catalog"));
  EXPECT_TRUE(Check(true).lost_images.empty());
  image_.ExpectIn(*store_, "job:2");
  RK_ASSERT_OK(image_.Commit(*store_, "job:3", "job:2"));
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
  Reopen();
  ExpectWhole();
  image_.ExpectIn(*store_, "job:3");
}

// What only helps.
TEST_F(CatalogLossTest, OtherMissingFoldersAreMadeAnew) {
  for (const bool open : {false, true}) {
    SCOPED_TRACE(open);
    for (const char* name : {"index", "tmp"})
      RK_ASSERT_OK(RemoveTree(absl::StrCat(options_.path, "/", name)));
    EXPECT_EQ(Check(false).problems.size(), 2u) << "the store is not as it is to be";
    GcOptions looks;
    looks.dry_run = true;
    RK_ASSERT_OK(store_->Gc(looks));
    if (open) {
      Check(true);
    } else {
      Reopen();
    }
    ExpectWhole();
    RK_ASSERT_OK(image_.Commit(*store_, absl::StrCat("job:", open), "job:2"));
    RK_ASSERT_OK(store_->Gc({}));
  }
}

}  // namespace
}  // namespace rekindle::store
