// Packs that gc can't work on, or not fully, do not keep it from the rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dedup_store/format.h"
#include "dedup_store/hooked_store_testing.h"

namespace rekindle::store {
namespace {

using Call = HookedDisk::Call;

class GcTroubleTest : public HookedStoreTest {
 protected:
  void SetUp() override {
    HookedStoreTest::SetUp();
    // Of each pair the second image needs half of the first one's pack.
    for (uint64_t i = 0; i < 3; ++i) {
      TestImage image;
      image.objects["o"][0] = MakePages(128, 10 + i);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("whole:", i)));
      image.objects["o"][0].resize(64 * kPageSize);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("half:", i)));
      RK_ASSERT_OK(store_->Remove(absl::StrCat("whole:", i)));
    }
    leftover_ = options_.path + "/packs/00000000deadbeef.pack";
    RK_ASSERT_OK(WriteFileAtomically(leftover_, "of a writer that died"));
  }
  static bool OfAPack(const HookedDisk::Operation& operation) {
    return absl::EndsWith(operation.path, ".pack");
  }

  std::string leftover_;
};

TEST_F(GcTroubleTest, AFileSystemThatCannotFreePartsOfAFile) {
  hook_ = [](const HookedDisk::Operation& operation) {
    return operation.call == Call::kPunchHole ? ErrnoStatus(EOPNOTSUPP, "giving back space")
                                              : absl::OkStatus();
  };
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_rewritten, 0u);
  EXPECT_EQ(report->leftovers_removed, 1u);
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
  for (int i = 0; i < 3; ++i) RK_ASSERT_OK(store_->Remove(absl::StrCat("half:", i)));
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 6u);
  EXPECT_TRUE(ListDirectory(options_.path + "/packs")->empty());
}

TEST_F(GcTroubleTest, APackThatIsRemovedJustBeforeACheckLooksAtItIsNotDamaged) {
  RK_ASSERT_OK(store_->Gc({}));  // half of them reads as zeros now, which the catalog knows until they go
  bool checks = true;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call != Call::kLock || operation.exclusive || !OfAPack(operation) ||
        !std::exchange(checks, false)) {
      return absl::OkStatus();
    }
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(store_->Remove(absl::StrCat("half:", i)).ok());
    const auto report = store_->Gc({});
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->packs_removed, 6u);
    return absl::OkStatus();
  };
  FsckOptions options;
  options.read_data = true;
  const auto report = store_->Fsck(options);
  RK_ASSERT_OK(report);
  EXPECT_FALSE(checks) << "it has looked at none";
  EXPECT_THAT(report->problems, testing::IsEmpty());
}

TEST_F(GcTroubleTest, FilesInTheMakingOfWritersThatDiedGo) {
  const std::vector<std::string> left = {"LIMITS.tmp-1-2",
                                         "SCRUB.tmp-1-2",
                                         "FORMAT.tmp-1-2",
                                         "hot-frames.tmp-1-2",
                                         "FORMAT.new-00000000deadbeef",
                                         "FORMAT.new-00000000deadbeef.tmp-1-2"};
  const std::vector<std::string> others = {"LIMITS.tmp-3-4", "LIMITS.old", "notes.tmp-1-2"};
  for (const auto* names : {&left, &others}) {
    for (const std::string& name : *names)
      RK_ASSERT_OK(WriteFileAtomically(absl::StrCat(options_.path, "/", name), "x"));
  }
  // Somebody is writing this one.
  auto lock = LockFile(absl::StrCat(options_.path, "/LIMITS.tmp-3-4"), LOCK_EX);
  RK_ASSERT_OK(lock);
  GcOptions dry;
  dry.dry_run = true;
  auto report = store_->Gc(dry);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1 + left.size());
  for (const std::string& name : left)
    EXPECT_TRUE(PathExists(absl::StrCat(options_.path, "/", name))) << name;
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->leftovers_removed, 1 + left.size());
  for (const std::string& name : left)
    EXPECT_FALSE(PathExists(absl::StrCat(options_.path, "/", name))) << name;
  for (const std::string& name : others)
    EXPECT_TRUE(PathExists(absl::StrCat(options_.path, "/", name))) << name;
  ExpectWhole();
}

// A transaction costs four syncs.
TEST_F(GcTroubleTest, WhatItFindsDeadIsNotedTogether) {
  std::atomic<int> transactions = 0;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kSync && absl::EndsWith(operation.path, ".a")) ++transactions;
    return absl::OkStatus();
  };
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_rewritten, 3u);
  EXPECT_GT(report->bytes_freed, 3 * 32 * kPageSize);
  EXPECT_EQ(transactions, 2) << "what is dead, and that it was given back";
  transactions = 0;
  report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_rewritten, 0u);
  EXPECT_EQ(transactions, 0);
  ExpectWhole();
}

TEST_F(GcTroubleTest, WhatACancelledOneHasLeftTheNextFrees) {
  std::atomic<bool> cancel{false};
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == Call::kPunchHole) cancel = true;
    return absl::OkStatus();
  };
  GcOptions options;
  options.cancel = &cancel;
  const absl::Status cancelled = store_->Gc(options).status();
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  EXPECT_TRUE(PathExists(leftover_));
  ExpectWhole();
  auto rest = store_->Gc({});
  RK_ASSERT_OK(rest);
  EXPECT_EQ(rest->packs_rewritten, 3u) << "the one that it was at, too";
  EXPECT_FALSE(PathExists(leftover_));
  ExpectWhole();
}

TEST_F(GcTroubleTest, APackThatFailsIsNamedOnceAllElseIsDone) {
  for (const Call call : {Call::kOpen, Call::kPunchHole, Call::kSync}) {
    SCOPED_TRACE(static_cast<int>(call));
    std::string failing;
    hook_ = [&](const HookedDisk::Operation& operation) {
      if (!OfAPack(operation) || operation.call != call || !operation.writable) return absl::OkStatus();
      if (failing.empty()) failing = operation.path;
      return operation.path == failing ? ErrnoStatus(EIO, operation.path) : absl::OkStatus();
    };
    const auto failed = store_->Gc({});
    EXPECT_FALSE(failed.ok());
    EXPECT_NE(failing, "");
    EXPECT_TRUE(absl::StrContains(failed.status().message(), failing)) << failed.status();
    EXPECT_FALSE(PathExists(leftover_));
    hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
    auto rest = store_->Gc({});
    RK_ASSERT_OK(rest);
    EXPECT_LE(rest->packs_rewritten, 1u) << "the other packs were done";
    ExpectWhole();
    // Something for the next round.
    for (int i = 0; i < 3; ++i) {
      TestImage image;
      image.objects["o"][0] = MakePages(128, static_cast<uint64_t>(100 * static_cast<int>(call) + i));
      RK_ASSERT_OK(image.Commit(*store_, "whole:1"));
      image.objects["o"][0].resize(64 * kPageSize);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("half", static_cast<int>(call), ":", i)));
      RK_ASSERT_OK(store_->Remove("whole:1"));
    }
  }
}

}  // namespace
}  // namespace rekindle::store
