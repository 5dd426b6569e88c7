#include "daemon/code_room.h"

#include "base/status.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::daemon {
namespace {

using store::StatusOf;
using ::testing::HasSubstr;

constexpr uid_t kAnna = 1000, kBert = 1001;
constexpr size_t kJobPages = 512;

class CodeRoomTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    image_.objects[store::kObject][0] = store::MakePages(kJobPages, 1);
  }

  // With the same memory but for one page.
  void Take(const std::string& reference) {
    image_.objects[store::kObject][0].replace(0, store::kPageSize, store::MakePages(1, ++seed_));
    store::NewImageOptions options = store::Named(reference);
    options.owner = kAnna;
    RK_ASSERT_OK(image_.Commit(*store_, options));
  }
  void Limit(uid_t owner, uint64_t bytes) {
    store::LimitsChange change;
    change.owner = {owner, bytes};
    std::string warning;
    RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  }
  absl::Status Check(uid_t owner, uint64_t code_bytes) {
    RK_ASSIGN_OR_RETURN(const CodeRoom room,
                        CodeRoom::Of(*store_, options_.path, {}, ledger_, {}, "f", owner));
    return room.Check(code_bytes, /*all=*/true);
  }

  std::shared_ptr<functions::CodeLedger> ledger_ = std::make_shared<functions::CodeLedger>();
  store::TestImage image_;
  uint64_t seed_ = 100;
};

// As `quota` shows it, and as new images are held against it.
TEST_F(CodeRoomTest, WhatAnImageNeedsOfOnesThatAreGoneCounts) {
  Take("job:1");
  Take("job:2");
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  auto owners = store::MeasureOwners(*store_);
  RK_ASSERT_OK(owners);
  const uint64_t used = (*owners)[kAnna].bytes;
  ASSERT_GE(used, kJobPages * store::kPageSize);
  Limit(kAnna, used + 1000);
  Limit(kBert, used + 1000);
  EXPECT_TRUE(Check(kAnna, 1000).ok());
  const absl::Status refused = Check(kAnna, 1001);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("quota of uid 1000"));
  EXPECT_TRUE(Check(kBert, 1001).ok());
  Limit(kAnna, used / 2);
  const absl::Status full = Check(kAnna, 0);  // as it is asked before anything is copied
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("there is no room for the code of function 'f': the quota"));
  EXPECT_TRUE(absl::IsResourceExhausted(Check(kAnna, 1)));
}

}  // namespace
}  // namespace rekindle::daemon
