// Names of images that somebody else takes at the last moment.
#include "absl/strings/match.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uid_t kAlice = 1001, kBob = 1002;

class StoreOwnerTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    alices_.objects["m"][0] = MakePages(4, 1);
    bobs_.objects["m"][0] = MakePages(4, 2);
  }

  static NewImageOptions Of(uid_t owner) {
    NewImageOptions options = Named("job:1");
    options.owner = owner;
    options.replace = true;
    return options;
  }
  static absl::Status AddPages(ImageWriter& writer, const TestImage& image) {
    const std::string& pages = image.objects.at("m").at(0);
    return writer.AddPages("m", 0, {reinterpret_cast<const std::byte*>(pages.data()), pages.size()});
  }

  TestImage alices_, bobs_;
};

TEST_F(StoreOwnerTest, AnothersImageIsNotReplaced) {
  RK_ASSERT_OK(alices_.Commit(*store_, Of(kAlice)));
  absl::Status refused = bobs_.Commit(*store_, Of(kBob)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "1001")) << refused;
  alices_.ExpectIn(*store_, "job:1");
  NewImageOptions admin = Of(kBob);
  admin.replace_others = true;
  RK_ASSERT_OK(bobs_.Commit(*store_, admin));
  bobs_.ExpectIn(*store_, "job:1");
  RK_ASSERT_OK(alices_.Commit(*store_, [&] {
    NewImageOptions own = Of(kAlice);
    own.reference = "job:2";
    return own;
  }()));
}

TEST_F(StoreOwnerTest, ANameThatWasTakenMeanwhileStaysWithItsOwner) {
  for (const char* id : {"", "g1"}) {
    NewImageOptions options = Of(kBob);
    options.prepared_id = id;
    RK_ASSERT_OK(bobs_.Commit(*store_, Of(kBob)));
    auto writer = store_->NewImage(options);
    RK_ASSERT_OK(writer);
    RK_ASSERT_OK(AddPages(**writer, bobs_));
    RK_ASSERT_OK(store_->Remove("job:1"));
    RK_ASSERT_OK(alices_.Commit(*store_, Of(kAlice)));
    absl::Status refused = (*writer)->Commit().status();
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
    alices_.ExpectIn(*store_, "job:1");
    EXPECT_TRUE(store_->ListPrepared()->empty());
    RK_ASSERT_OK(store_->Remove("job:1"));
  }
  ExpectWhole();
}

TEST_F(StoreOwnerTest, RemovalAsksAboutTheImageThatGoes) {
  RK_ASSERT_OK(alices_.Commit(*store_, Of(kAlice)));
  uid_t asked = 0;
  auto bob_may = [&](const ImageInfo& image) {
    asked = image.owner;
    return image.owner == kBob ? absl::OkStatus() : absl::PermissionDeniedError("not yours");
  };
  EXPECT_TRUE(absl::IsPermissionDenied(store_->Remove("job:1", bob_may)));
  EXPECT_EQ(asked, kAlice);
  alices_.ExpectIn(*store_, "job:1");
  const absl::Status unknown = store_->Remove(store_->Find("job:1")->digest, bob_may);
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_FALSE(absl::StrContains(unknown.message(), "job")) << unknown;
  alices_.ExpectIn(*store_, "job:1");
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(bobs_.Commit(*store_, Of(kBob)));
  RK_ASSERT_OK(store_->Remove("job:1", bob_may));
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(StoreOwnerTest, WhoExpectsNothingLooksAtNoOtherImage) {
  for (const char* name : {"job:1", "job:2", "tree:1"}) {
    NewImageOptions options = Of(kAlice);
    options.reference = name;
    RK_ASSERT_OK(alices_.Commit(*store_, options));
  }
  NewImageOptions prepared = Of(kAlice);
  prepared.reference = "job:4";
  prepared.prepared_id = "g1";
  RK_ASSERT_OK(bobs_.Commit(*store_, prepared));
  const auto there = store_->FindByName("job:2");
  RK_ASSERT_OK(there);
  ASSERT_TRUE(there->has_value());
  EXPECT_EQ((*there)->reference, "job:2");
  for (const char* name : {"job:3", "job:4", "job"}) {
    const auto missing = store_->FindByName(name);
    RK_ASSERT_OK(missing);
    EXPECT_FALSE(missing->has_value()) << name;
  }
  // Whoever is to be told what comes near looks at each once, though the store is asked again for what other
  // nodes have committed.
  int asked = 0;
  const absl::Status unknown = store_
                                   ->Find("job:3",
                                          [&](const ImageInfo& info) {
                                            ++asked;
                                            return info.reference != "job:1";
                                          })
                                   .status();
  EXPECT_TRUE(absl::StrContains(unknown.message(), "The closest there is: job:2")) << unknown;
  EXPECT_EQ(asked, 3);
}

TEST_F(StoreOwnerTest, NoOtherJobsImageIsTheClosest) {
  for (const char* name : {"llm:20261127-181017.101", "llm:20261127-181018.894", "c:1", "c:latest"}) {
    NewImageOptions options = Of(kAlice);
    options.reference = name;
    RK_ASSERT_OK(alices_.Commit(*store_, options));
  }
  const auto told = [&](const char* image) { return std::string(store_->Find(image).status().message()); };
  for (const char* image : {"llm", "llm:1", "llm@sha256:0123456789ab", "lmm"})
    EXPECT_TRUE(absl::EndsWith(told(image), "The closest there is: llm:20261127-181018.894")) << told(image);
  for (const char* image : {"a", "a:1", "tree:latest", "sha256:0123456789ab"})
    EXPECT_FALSE(absl::StrContains(told(image), "closest")) << told(image);
}

TEST_F(StoreOwnerTest, AListHasWhatIsWanted) {
  for (const char* name : {"job:1", "tree:1", "job:2"}) {
    NewImageOptions options = Of(kAlice);
    options.reference = name;
    RK_ASSERT_OK(alices_.Commit(*store_, options));
  }
  const auto jobs =
      store_->List([](const ImageInfo& info) { return absl::StartsWith(info.reference, "job:"); });
  RK_ASSERT_OK(jobs);
  ASSERT_EQ(jobs->size(), 2u);
  EXPECT_EQ(jobs->front().reference, "job:2");
  EXPECT_EQ(jobs->back().reference, "job:1");
  EXPECT_EQ(store_->List()->size(), 3u);
}

TEST_F(StoreOwnerTest, ADigestFindsNothingOfOthers) {
  const auto bobs_copy = alices_.Commit(*store_, [] {
    NewImageOptions options = Of(kBob);
    options.reference = "copy:1";
    return options;
  }());
  RK_ASSERT_OK(bobs_copy);
  const MaySee alice = [](const ImageInfo& info) { return info.owner == kAlice; };
  const std::string prefix = bobs_copy->digest.substr(0, sizeof("sha256:") + 11);
  for (const std::string& name : {bobs_copy->digest, prefix, "copy@" + bobs_copy->digest}) {
    EXPECT_EQ(store_->Find(name)->reference, "copy:1") << name;
    EXPECT_TRUE(absl::IsNotFound(store_->Find(name, alice).status())) << name;
  }
  // Her own of the same content is found, and is the only one to go.
  const auto alices_copy = alices_.Commit(*store_, Of(kAlice));
  RK_ASSERT_OK(alices_copy);
  ASSERT_EQ(alices_copy->digest, bobs_copy->digest);
  RK_ASSERT_OK(bobs_.Commit(*store_, [] {
    NewImageOptions options = Of(kBob);
    options.reference = "other:1";
    return options;
  }()));
  EXPECT_EQ(store_->Find(prefix, alice)->reference, "job:1");
  const auto may = [&](const ImageInfo& info) {
    return alice(info) ? absl::OkStatus() : absl::PermissionDeniedError("not hers");
  };
  RK_ASSERT_OK(store_->Remove(prefix, may));
  EXPECT_TRUE(absl::IsNotFound(store_->Remove(prefix, may)));
  RK_ASSERT_OK(store_->Find("copy:1"));
}

}  // namespace
}  // namespace rekindle::store
