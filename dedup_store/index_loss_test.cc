// An index file that can't be read any more while it is in use.
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/index_file.h"
#include "dedup_store/page_index.h"
#include "dedup_store/store_core.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class IndexLossTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    for (uint64_t i = 0; i < 10; ++i) {
      TestImage image;
      image.objects["m"][0] = MakePages(200, i);
      RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("job:", i)));
    }
    auto core = StoreCore::Open(options_);
    RK_ASSERT_OK(core);
    core_ = *core;
    auto txn = core_->catalog().Read();
    RK_ASSERT_OK(txn);
    auto indexes = txn->Indexes();
    RK_ASSERT_OK(indexes);
    ASSERT_EQ(indexes->size(), 1u);
    record_ = indexes->front();
  }

  // As a disk does that can't read the rest.
  void Shorten() const { ASSERT_EQ(::truncate(core_->index_path(record_.id).c_str(), 4096), 0); }
  uint64_t FingerprintOf(const std::string& page) const {
    return core_->fingerprinter().OfPage(reinterpret_cast<const std::byte*>(page.data()));
  }

  std::shared_ptr<StoreCore> core_;
  IndexRecord record_;
};

TEST_F(IndexLossTest, LookUpsFindNothingAndNothingEnds) {
  auto index = PageIndex::Load(core_.get());
  RK_ASSERT_OK(index);
  auto any = [](const Pack&, uint32_t) { return true; };
  std::vector<uint64_t> fingerprints;
  for (uint64_t i = 0; i < 8; ++i) {
    const std::string pages = MakePages(200, i);
    for (size_t at = 0; at < pages.size(); at += kPageSize) {
      fingerprints.push_back(FingerprintOf(pages.substr(at, kPageSize)));
    }
  }
  ASSERT_TRUE((*index)->Find(fingerprints.front(), any));
  Shorten();
  (*index)->Prefetch(fingerprints);
  size_t found = 0;
  for (uint64_t fingerprint : fingerprints) found += (*index)->Find(fingerprint, any) ? 1 : 0;
  EXPECT_LT(found, fingerprints.size());
  EXPECT_FALSE((*index)->Find(fingerprints.front(), any)) << "none of it is used any more";
}

TEST_F(IndexLossTest, NewImagesAreWholeAndFsckRepairsIt) {
  Shorten();
  EXPECT_TRUE(absl::IsDataLoss(VerifyIndexFile(core_.get(), record_)));
  TestImage image;
  image.objects["m"][0] = MakePages(200, 1) + MakePages(20, 77);
  RK_ASSERT_OK(image.Commit(*store_, "new:1"));
  image.ExpectIn(*store_, "new:1");
  RK_ASSERT_OK(Repair());
  ExpectWhole();
}

}  // namespace
}  // namespace rekindle::store
