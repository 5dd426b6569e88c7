// A store on a file system that several nodes have, such as NFS.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/lock_error.h"
#include "dedup_store/catalog.h"
#include "dedup_store/hooked_store_testing.h"
#include "dedup_store/store_identity.h"

namespace rekindle::store {
namespace {

// Exclusive locks are for files that were opened for writing.
absl::Status AsNfs(const HookedDisk::Operation& operation) {
  const bool refused =
      operation.call == HookedDisk::Call::kLock && operation.exclusive && !operation.writable;
  return refused ? ErrnoStatus(EBADF, "locking " + operation.path) : absl::OkStatus();
}

class SharedStoreTest : public HookedStoreTest {
 protected:
  void SetUp() override {
    hook_ = AsNfs;
    HookedStoreTest::SetUp();
    image_.objects["m"][0] = MakePages(100, 1);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
  }

  TestImage image_;
};

TEST_F(SharedStoreTest, GcTakesWhatWritersLeftThere) {
  const std::string leftover = options_.path + "/packs/00000000deadbeef.pack";
  RK_ASSERT_OK(WriteFileAtomically(leftover, "of a writer that died"));
  GcOptions dry;
  dry.dry_run = true;
  auto report = store_->Gc(dry);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1u);
  EXPECT_TRUE(PathExists(leftover));
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1u);
  EXPECT_FALSE(PathExists(leftover));
}

TEST_F(SharedStoreTest, GcCountsWhatOthersHaveLocked) {
  auto reader = store_->OpenImage("job:1");
  RK_ASSERT_OK(reader);
  RK_ASSERT_OK(store_->Remove("job:1"));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_in_use, 1u);
  EXPECT_EQ(report->packs_removed, 0u);
  reader->reset();
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_in_use, 0u);
  EXPECT_EQ(report->packs_removed, 1u);
}

TEST_F(SharedStoreTest, AFileSystemWithoutLocksIsNamedWithTheCure) {
  for (int error : {ENOLCK, ENOSYS}) {
    hook_ = [&](const HookedDisk::Operation& operation) {
      return operation.call == HookedDisk::Call::kLock ? LockError(error, operation.path) : absl::OkStatus();
    };
    const absl::Status refused = store_->Remove("job:1");
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), options_.path)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "-o flock")) << refused;
  }
  hook_ = AsNfs;
  RK_ASSERT_OK(store_->Remove("job:1"));
}

// The client keeps a file that is removed while it is open, under another name.
TEST_F(SharedStoreTest, ANewCatalogIsSeenThoughTheOldOneHasANameStill) {
  const std::string catalog = options_.path + "/catalog/";
  const std::vector<std::string> names = ListDirectory(catalog).value();
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".b")) {
      ASSERT_EQ(::link((catalog + name).c_str(), (catalog + ".nfs0001").c_str()), 0);
    }
    if (!absl::EndsWith(name, ".a")) continue;
    const int fd = ::open((catalog + name).c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::pwrite(fd, "?", 1, 60), 1);
    ::close(fd);
  }
  HookedDisk of_the_other(AsNfs);
  {
    StoreOptions options = options_;
    options.io = &of_the_other;
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    FsckOptions repair;
    repair.repair = true;
    RK_ASSERT_OK((*other)->Fsck(repair));  // a new generation
    RK_ASSERT_OK(image_.Commit(**other, "job:2"));
  }
  RK_ASSERT_OK(store_->Find("job:2"));
  image_.ExpectIn(*store_, "job:2");
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
}

// Two nodes that have one store open. Each remembers for a while how long its open files are.
class TwoNodesTest : public SharedStoreTest {
 protected:
  void SetUp() override {
    disk_.Remember(HookedDisk::Memory::kUntilRevalidated);
    other_disk_.Remember(HookedDisk::Memory::kUntilRevalidated);
    SharedStoreTest::SetUp();
    StoreOptions options = options_;
    options.io = &other_disk_;
    auto other = Store::Open(options);
    RK_ASSERT_OK(other);
    other_ = *std::move(other);
  }
  void TearDown() override {
    other_.reset();
    SharedStoreTest::TearDown();
  }
  // By a third one, which remembers nothing.
  void ExpectThere(const std::vector<std::string>& references) {
    StoreOptions options = options_;
    options.io = nullptr;
    auto third = Store::Open(options);
    RK_ASSERT_OK(third);
    for (const std::string& reference : references) image_.ExpectIn(**third, reference);
    FsckOptions check;
    check.read_data = true;
    auto report = (*third)->Fsck(check);
    RK_ASSERT_OK(report);
    EXPECT_TRUE(report->problems.empty()) << report->problems.front();
  }

  HookedDisk other_disk_{AsNfs};
  std::unique_ptr<Store> other_;
};

TEST_F(TwoNodesTest, NeitherOverwritesWhatTheOtherCommitted) {
  RK_ASSERT_OK(image_.Commit(*other_, "job:2"));
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
  RK_ASSERT_OK(image_.Commit(*other_, "job:4"));
  ExpectThere({"job:1", "job:2", "job:3", "job:4"});
}

// A file system that does not even look when it is asked to.
TEST_F(TwoNodesTest, NeitherOverwritesWhereOnlyOpeningAFileShowsWhatIsInIt) {
  disk_.Remember(HookedDisk::Memory::kForEver);
  other_disk_.Remember(HookedDisk::Memory::kForEver);
  RK_ASSERT_OK(image_.Commit(*other_, "job:2"));
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
  RK_ASSERT_OK(image_.Commit(*other_, "job:4"));
  ExpectThere({"job:1", "job:2", "job:3", "job:4"});
}

TEST_F(TwoNodesTest, WhatTheOtherCommittedIsFoundAtOnce) {
  RK_ASSERT_OK(image_.Commit(*other_, "job:2"));
  RK_ASSERT_OK(store_->Find("job:2"));
  RK_ASSERT_OK(image_.Commit(*other_, "job:2", "", /*replace=*/true));
  image_.ExpectIn(*store_, "job:2");
}

TEST_F(TwoNodesTest, GcLeavesAPackThatTheOtherHasJustCommitted) {
  TestImage fresh;
  fresh.objects["m"][0] = MakePages(100, 2);
  RK_ASSERT_OK(fresh.Commit(*other_, "new:1"));
  RK_ASSERT_OK(store_->Gc({}));
  fresh.ExpectIn(*other_, "new:1");
  ExpectThere({"job:1"});
}

TEST_F(TwoNodesTest, GcLeavesAPackThatTheOtherHasJustReferredTo) {
  NewImageOptions options = Named("job:2");
  options.parent = "job:1";
  auto writer = other_->NewImage(options);
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK((*writer)->AddParentPages("m", 0, 100));
  RK_ASSERT_OK((*writer)->Commit());
  writer->reset();
  RK_ASSERT_OK(store_->Gc({}));
  ExpectThere({"job:2"});
}

TEST_F(TwoNodesTest, NothingNewRefersToWhatTheOtherHasGivenBack) {
  TestImage large, part;
  large.objects["m"][0] = MakePages(512, 3);
  part.objects["m"][0] = large.objects["m"][0].substr(0, 64 * kPageSize);
  RK_ASSERT_OK(large.Commit(*other_, "large:1"));
  RK_ASSERT_OK(part.Commit(*other_, "part:1", "large:1"));
  RK_ASSERT_OK(store_->Find("part:1"));  // it knows both
  RK_ASSERT_OK(other_->Remove("large:1"));
  RK_ASSERT_OK(other_->Gc({}));
  RK_ASSERT_OK(large.Commit(*store_, "large:2"));
  large.ExpectIn(*other_, "large:2");
  ExpectThere({"job:1"});
}

// It stood still, or was cut off, for longer than the file server waits: its locks are another's.
TEST_F(TwoNodesTest, NothingIsCommittedThatNeedsWhatTheOtherTookMeanwhile) {
  disk_.LoseLocks();
  NewImageOptions options = Named("job:2");
  options.parent = "job:1";
  auto writer = store_->NewImage(options);
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK(other_->Remove("job:1"));
  RK_ASSERT_OK(other_->Gc({}));
  RK_ASSERT_OK((*writer)->AddParentPages("m", 0, 100));
  const absl::Status refused = (*writer)->Commit().status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "take it again")) << refused;
  RK_ASSERT_OK(image_.Commit(*store_, "job:3"));
  ExpectThere({"job:3"});
}

TEST_F(TwoNodesTest, NothingIsCommittedThatNeedsWhatARepairGaveUpMeanwhile) {
  image_.objects["m"][0] = MakePages(300, 1);
  RK_ASSERT_OK(image_.Commit(*store_, "job:1", "", /*replace=*/true));
  RK_ASSERT_OK(store_->Gc({}));
  NewImageOptions options = Named("job:2");
  options.parent = "job:1";
  auto writer = store_->NewImage(options);
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages("m", 0, Bytes(image_.objects["m"][0])));
  const absl::Status refused =
      (*writer)
          ->Commit({},
                   [&]() -> absl::Status {
                     const auto names = ListDirectory(options_.path + "/packs");
                     for (const std::string& name : *names) {
                       const std::string path = options_.path + "/packs/" + name;
                       if (FileSize(path) < 200 * kPageSize) continue;
                       const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
                       EXPECT_EQ(::pwrite(fd, "?!", 2, 100 * kPageSize), 2);
                       ::close(fd);
                     }
                     FsckOptions repair;
                     repair.read_data = repair.repair = true;
                     StoreOptions of_another = options_;
                     of_another.io = nullptr;
                     auto another = Store::Open(of_another);
                     auto report = another.ok() ? (*another)->Fsck(repair) : another.status();
                     EXPECT_TRUE(report.ok() && report->lost_images == std::vector<std::string>{"job:1"});
                     return report.status();
                   })
          .status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  // While what it has open is as it was.
  auto again = image_.Commit(*store_, "job:2");
  RK_ASSERT_OK(again);
  EXPECT_GT(again->stats.new_bytes, 0u);
  EXPECT_GT(again->stats.shared_bytes, again->stats.new_bytes);
  ExpectThere({"job:2"});
}

TEST_F(TwoNodesTest, NothingIsPutIntoAStoreThatTheOtherMadeAnew) {
  auto writer = store_->NewImage(Named("job:2"));
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages("m", 0, Bytes(image_.objects["m"][0])));
  other_.reset();
  // All but the folder itself, in which something is mounted, say.
  const std::vector<std::string> names = ListDirectory(options_.path).value();
  for (const std::string& name : names) RK_ASSERT_OK(RemoveTree(options_.path + "/" + name));
  StoreOptions options = options_;
  options.io = &other_disk_;
  auto made = Store::Open(options);
  RK_ASSERT_OK(made);
  RK_ASSERT_OK(image_.Commit(**made, "new:1"));
  for (const absl::Status& refused : {(*writer)->Commit().status(), image_.Commit(*store_, "job:3").status(),
                                      store_->Remove("new:1"), store_->CheckIsThere()}) {
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "made anew")) << refused;
  }
  EXPECT_FALSE(store_->WasRemoved());
  writer->reset();
  Reopen();
  RK_ASSERT_OK(image_.Commit(*store_, "job:4"));
  made->reset();
  ExpectThere({"new:1", "job:4"});
}

TEST_F(TwoNodesTest, AListGoesByTheOrderOfCommits) {
  auto catalog = Catalog::Open(options_.path + "/catalog", &other_disk_);
  RK_ASSERT_OK(catalog);
  RK_ASSERT_OK((*catalog)->Update([](Catalog::Txn& txn) -> absl::Status {
    ImageRecord record;
    RK_ASSIGN_OR_RETURN(record.id, txn.NextImageId());
    record.info.reference = "job:2";
    record.info.digest = "sha256:" + std::string(64, '0');
    record.info.created_unix_ns = 5;  // its clock is wrong
    return txn.PutImage(record);
  }));
  RK_ASSERT_OK(store_->Find("job:2"));
  auto list = store_->List();
  RK_ASSERT_OK(list);
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ((*list)[0].reference, "job:2");
  EXPECT_GT((*list)[0].commit_number, (*list)[1].commit_number);
}

// Nodes know nothing of each other's locks on folders.
TEST_F(SharedStoreTest, OfTwoNodesThatMakeOneStoreOneIsFirst) {
  const std::string path = folder_->path() + "/new";
  const StoreIdentity first = NewIdentity();
  bool done = false;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (std::exchange(done, true)) return AsNfs(operation);
    return WriteFirstIdentity(path, first);
  };
  StoreOptions options = options_;
  options.path = path;
  auto store = Store::Open(options);
  hook_ = AsNfs;
  RK_ASSERT_OK(store);
  EXPECT_TRUE(done);
  auto identity = ReadIdentity(path);
  RK_ASSERT_OK(identity);
  EXPECT_EQ(identity->uuid, first.uuid);
  RK_ASSERT_OK(image_.Commit(**store, "job:1"));
  store->reset();
  store = Store::Open(options);
  RK_ASSERT_OK(store);
  image_.ExpectIn(**store, "job:1");
}

TEST_F(SharedStoreTest, NodesThatChangeLimitsTakeTurns) {
  bool done = false;
  hook_ = [&](const HookedDisk::Operation& operation) -> absl::Status {
    const bool waits = operation.call == HookedDisk::Call::kLock && operation.exclusive;
    if (!waits || std::exchange(done, true)) return AsNfs(operation);
    StoreLimits of_other;
    of_other.store_max_bytes = 77 * kMiB;
    return WriteFileAtomically(options_.path + "/LIMITS", of_other.Encode());
  };
  LimitsChange change;
  change.high_water_percent = 50;
  std::string warning;
  auto limits = store_->ChangeLimits(change, &warning);
  hook_ = AsNfs;
  RK_ASSERT_OK(limits);
  EXPECT_EQ(limits->store_max_bytes, 77 * kMiB);
  EXPECT_EQ(limits->high_water_percent, 50u);
}

}  // namespace
}  // namespace rekindle::store
