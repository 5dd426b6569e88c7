// A check of a store whose frame tables do not fit in memory tells the same as one that has them all.
#include "dedup_store/checked_packs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dedup_store/maintenance.h"
#include "dedup_store/store_core.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kCheckedImages = 12, kPagesOfOne = 128;

class CheckedPacksTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    // Each needs pages of all before it.
    TestImage image;
    for (uint64_t i = 0; i < kCheckedImages; ++i) {
      image.objects[kObject][i * kPagesOfOne * kPageSize] = MakePages(kPagesOfOne, i + 1);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("job:", i)));
    }
    auto core = StoreCore::Open(options_);
    RK_ASSERT_OK(core);
    core_ = *std::move(core);
    auto txn = core_->catalog().Read();
    RK_ASSERT_OK(txn);
    packs_ = txn->Packs().value();
    ASSERT_EQ(packs_.size(), kCheckedImages);
  }

  absl::StatusOr<std::unique_ptr<Pack>> Open(uint64_t id) {
    ++opened_;
    auto file = core_->io()->Open(core_->pack_path(id), false);
    if (!file.ok()) return file.status();
    return Pack::Open(*std::move(file), id, core_->identity().uuid);
  }
  uint64_t BytesOfOne() const { return packs_[0].frames * sizeof(FrameEntry); }

  std::shared_ptr<StoreCore> core_;
  std::vector<PackRecord> packs_;
  uint64_t opened_ = 0;
};

TEST_F(CheckedPacksTest, OnlySoManyAreKept) {
  constexpr size_t kKept = 3;
  CheckedPacks checked([this](uint64_t id) { return Open(id); }, kKept * BytesOfOne());
  std::map<uint64_t, std::weak_ptr<const Pack>> given;
  const auto get = [&](size_t i) {
    auto pack = checked.Get(packs_[i].id);
    EXPECT_TRUE(pack.ok()) << pack.status();
    EXPECT_EQ((*pack)->id(), packs_[i].id);
    given[packs_[i].id] = *pack;
    return *std::move(pack);
  };
  const auto in_memory = [&] {
    return static_cast<size_t>(
        std::count_if(given.begin(), given.end(), [](const auto& one) { return !one.second.expired(); }));
  };
  const std::shared_ptr<const Pack> held = get(0);
  for (size_t i = 1; i < kCheckedImages; ++i) get(i);
  EXPECT_EQ(in_memory(), kKept);
  EXPECT_EQ(opened_, kCheckedImages);
  EXPECT_FALSE(given[packs_[0].id].expired()) << "somebody holds it";
  // Those that were asked for last are there, and again when they are asked for.
  get(kCheckedImages - 1);
  EXPECT_EQ(opened_, kCheckedImages);
  get(1);
  get(kCheckedImages - 1);
  EXPECT_EQ(opened_, kCheckedImages + 1);
}

TEST_F(CheckedPacksTest, ACheckWithoutMemoryTellsTheSame) {
  FsckOptions options;
  options.read_data = true;
  const auto check = [&](uint64_t bytes) {
    auto report = CheckStore(core_, options, bytes);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(FsckReport());
  };
  EXPECT_TRUE(check(0).problems.empty());
  // A page of the fifth image's, which all later ones need.
  const PackRecord damaged = [&] {
    auto txn = core_->catalog().Read();
    return txn->FindPack(txn->FindReference("job:4").value()->manifest_pack).value().value();
  }();
  {
    auto file = core_->io()->Open(core_->pack_path(damaged.id), true);
    RK_ASSERT_OK(file);
    RK_ASSERT_OK((*file)->WriteAt(2 * kPageSize, Bytes(std::string(kPageSize, 'x'))));
    RK_ASSERT_OK((*file)->Sync());
  }
  const FsckReport all = check(kFrameTableBytes), little = check(0);
  EXPECT_EQ(all.lost_images.size(), kCheckedImages - 4);
  EXPECT_EQ(little.lost_images, all.lost_images);
  EXPECT_EQ(little.problems, all.problems);
  EXPECT_EQ(little.chunks_checked, all.chunks_checked);
  options.repair = true;
  EXPECT_EQ(check(0).lost_images, all.lost_images);
  options.repair = false;
  EXPECT_TRUE(check(0).problems.empty());
  EXPECT_EQ(store_->List()->size(), 4u);
}

}  // namespace
}  // namespace rekindle::store
