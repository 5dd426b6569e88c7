// Images that are stored and wait for somebody's decision.
#include "absl/strings/match.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class StorePreparedTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    old_.objects["m"][0] = MakePages(20, 1);
    new_.objects["m"][0] = MakePages(10, 1) + MakePages(10, 2);
    new_.blobs["b"] = "new";
  }

  absl::StatusOr<ImageInfo> Prepare(const TestImage& image, const std::string& id,
                                    const std::string& reference, bool replace = false) {
    NewImageOptions options = Named(reference);
    options.prepared_id = id;
    options.replace = replace;
    options.labels["group"] = id;
    return image.Commit(*store_, options);
  }

  void MakeCatalogAgain() {
    store_.reset();
    for (const char* copy : {"a", "b"}) {
      RK_ASSERT_OK(RemoveTree(absl::StrCat(options_.path, "/catalog/0000000000000001.", copy)));
    }
    options_.rebuild_catalog = true;
    Reopen();
  }

  TestImage old_, new_;
};

TEST_F(StorePreparedTest, NobodySeesItUntilItIsPublished) {
  auto prepared = Prepare(new_, "g1.0", "job:1");
  RK_ASSERT_OK(prepared);
  EXPECT_EQ(prepared->reference, "job:1");
  Reopen();
  EXPECT_TRUE(store_->List()->empty());
  EXPECT_TRUE(absl::IsNotFound(store_->Find("job:1").status()));
  EXPECT_TRUE(absl::IsNotFound(store_->OpenImage(prepared->digest).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Find("+g1.0+job:1").status()));
  auto list = store_->ListPrepared();
  RK_ASSERT_OK(list);
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().id, "g1.0");
  EXPECT_EQ(list->front().info.reference, "job:1");
  EXPECT_EQ(list->front().info.labels["group"], "g1.0");
  ExpectWhole();
  RK_ASSERT_OK(store_->Gc({}));

  auto published = store_->PublishPrepared("g1.0");
  RK_ASSERT_OK(published);
  EXPECT_EQ(published->digest, prepared->digest);
  Reopen();
  new_.ExpectIn(*store_, "job:1");
  EXPECT_TRUE(store_->ListPrepared()->empty());
  EXPECT_TRUE(absl::IsNotFound(store_->PublishPrepared("g1.0").status()));
  ExpectWhole();
}

TEST_F(StorePreparedTest, ItsNameIsKeptForIt) {
  RK_ASSERT_OK(Prepare(new_, "g1", "job:1"));
  EXPECT_TRUE(absl::IsAlreadyExists(old_.Commit(*store_, "job:1").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(old_.Commit(*store_, "job:1", "", /*replace=*/true).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Prepare(old_, "g2", "job:1", true).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Prepare(old_, "g1", "job:2").status()));
  RK_ASSERT_OK(store_->RemovePrepared("g1"));
  EXPECT_TRUE(absl::IsNotFound(store_->RemovePrepared("g1")));
  RK_ASSERT_OK(old_.Commit(*store_, "job:1"));
  old_.ExpectIn(*store_, "job:1");
}

TEST_F(StorePreparedTest, WhatItReplacesStaysUntilThen) {
  RK_ASSERT_OK(old_.Commit(*store_, "job:1"));
  EXPECT_TRUE(absl::IsAlreadyExists(Prepare(new_, "g1", "job:1").status()));
  RK_ASSERT_OK(Prepare(new_, "g1", "job:1", /*replace=*/true));
  old_.ExpectIn(*store_, "job:1");
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  new_.ExpectIn(*store_, "job:1");
  EXPECT_EQ(store_->List()->size(), 1u);
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
}

TEST_F(StorePreparedTest, ItsPagesGoWhenItIsRemoved) {
  RK_ASSERT_OK(old_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  const uint64_t before = store_->Stats()->packs;
  RK_ASSERT_OK(Prepare(new_, "g1", "job:2"));
  RK_ASSERT_OK(store_->RemovePrepared("g1"));
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_EQ(store_->Stats()->packs, before);
  old_.ExpectIn(*store_, "job:1");
  ExpectWhole();
}

TEST_F(StorePreparedTest, AnotherImageOfEqualContentIsFoundByItsDigest) {
  RK_ASSERT_OK(new_.Commit(*store_, "job:1"));
  auto prepared = Prepare(new_, "g1", "job:2");
  RK_ASSERT_OK(prepared);
  auto found = store_->Find(prepared->digest);
  RK_ASSERT_OK(found);
  EXPECT_EQ(found->reference, "job:1");
  RK_ASSERT_OK(store_->Remove(prepared->digest));
  EXPECT_TRUE(absl::IsNotFound(store_->Find(prepared->digest).status()));
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  new_.ExpectIn(*store_, "job:2");
}

TEST_F(StorePreparedTest, ItIsStillPreparedWhenTheCatalogIsMadeAgain) {
  RK_ASSERT_OK(Prepare(new_, "g1", "job:1"));
  MakeCatalogAgain();
  EXPECT_TRUE(store_->List()->empty());
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  new_.ExpectIn(*store_, "job:1");
}

TEST_F(StorePreparedTest, WhatHasReplacedItStaysWhenTheCatalogIsMadeAgain) {
  RK_ASSERT_OK(Prepare(old_, "g1", "job:1"));
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  RK_ASSERT_OK(new_.Commit(*store_, "job:1", "", /*replace=*/true));
  MakeCatalogAgain();
  EXPECT_TRUE(store_->ListPrepared()->empty());
  EXPECT_TRUE(absl::IsNotFound(store_->PublishPrepared("g1").status()));
  new_.ExpectIn(*store_, "job:1");
}

// Nobody can tell by the packs what was decided about either.
TEST_F(StorePreparedTest, OfTwoThatArePreparedAgainTheOlderDoesNotReplaceTheNewer) {
  RK_ASSERT_OK(Prepare(old_, "g1", "job:1"));
  RK_ASSERT_OK(store_->PublishPrepared("g1"));
  RK_ASSERT_OK(Prepare(new_, "g2", "job:1", /*replace=*/true));
  RK_ASSERT_OK(store_->PublishPrepared("g2"));
  MakeCatalogAgain();
  EXPECT_EQ(store_->ListPrepared()->size(), 2u);
  RK_ASSERT_OK(store_->PublishPrepared("g2"));
  const absl::Status refused = store_->PublishPrepared("g1").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  new_.ExpectIn(*store_, "job:1");
  RK_ASSERT_OK(store_->RemovePrepared("g1"));
  new_.ExpectIn(*store_, "job:1");
}

TEST_F(StorePreparedTest, IdsAreChecked) {
  for (const char* bad : {"a+b", "a b", "a/b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Prepare(new_, bad, "job:1").status())) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->PublishPrepared(bad).status())) << bad;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PublishPrepared("").status()));
  // One id is no beginning of another.
  RK_ASSERT_OK(Prepare(new_, "g10", "job:1"));
  EXPECT_TRUE(absl::IsNotFound(store_->PublishPrepared("g1").status()));
}

}  // namespace
}  // namespace rekindle::store
