// Store::WhereBytesAre.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class ImageBytesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
  }

  // An image of these pieces, one after the other.
  ImageInfo Take(const std::string& reference, const std::vector<std::string>& pieces) {
    TestImage image;
    for (size_t i = 0; i < pieces.size(); ++i) {
      image.objects["memory"][i << 30] = pieces[i];
    }
    auto info = image.Commit(*store_, reference);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : ImageInfo();
  }

  ImageBytes Bytes(const std::string& reference,
                   const std::function<bool(const ImageInfo&)>& may_see = nullptr) {
    auto bytes = store_->WhereBytesAre(reference, may_see);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    if (!bytes.ok()) return {};
    EXPECT_EQ(bytes->logical_bytes, bytes->zero_bytes + bytes->unique_bytes + bytes->shared_bytes);
    EXPECT_EQ(bytes->unique_stored_bytes + bytes->shared_stored_bytes,
              bytes->compressed_to_bytes + bytes->raw_bytes);
    return *std::move(bytes);
  }
};

constexpr uint64_t kPart = 256 * kPageSize;

TEST_F(ImageBytesTest, AloneInTheStore) {
  auto info = Take("a:1", {MakePages(256, 1), MakePages(256, 2, Content::kText),
                           MakePages(256, 0, Content::kZero), MakePages(256, 1)});
  ImageBytes bytes = Bytes("a:1");
  EXPECT_EQ(bytes.logical_bytes, 4 * kPart);
  EXPECT_EQ(bytes.logical_bytes, info.stats.logical_bytes);
  EXPECT_EQ(bytes.zero_bytes, kPart);
  EXPECT_EQ(bytes.unique_bytes, 3 * kPart);
  EXPECT_EQ(bytes.shared_bytes, 0u);
  EXPECT_EQ(bytes.raw_bytes, kPart);
  EXPECT_EQ(bytes.compressed_from_bytes, kPart);
  EXPECT_LT(bytes.compressed_to_bytes, kPart / 2);
  EXPECT_EQ(bytes.unique_stored_bytes, info.stats.stored_bytes);
  EXPECT_EQ(bytes.metadata_bytes, info.stats.metadata_bytes);
  EXPECT_TRUE(bytes.shares.empty());
  EXPECT_EQ(bytes.hidden_stored_bytes, 0u);
}

TEST_F(ImageBytesTest, SharedWithWhomAndWhatComesBack) {
  const std::string library = MakePages(256, 1), data = MakePages(512, 2), own = MakePages(128, 3);
  Take("library:1", {library});
  Take("data:1", {data});
  Take("both:1", {library, own, data});
  Take("stranger:1", {MakePages(64, 9)});
  ImageBytes bytes = Bytes("both:1");
  EXPECT_EQ(bytes.unique_bytes, own.size());
  EXPECT_EQ(bytes.shared_bytes, library.size() + data.size());
  EXPECT_EQ(bytes.unique_stored_bytes, own.size());
  EXPECT_EQ(bytes.shared_stored_bytes, library.size() + data.size());
  ASSERT_EQ(bytes.shares.size(), 2u);
  EXPECT_EQ(bytes.shares[0].reference, "data:1");
  EXPECT_EQ(bytes.shares[0].stored_bytes, data.size());
  EXPECT_EQ(bytes.shares[1].reference, "library:1");
  EXPECT_EQ(bytes.shares[1].stored_bytes, library.size());
  // Nothing of it is its own any more, whoever brought it.
  EXPECT_EQ(Bytes("library:1").unique_stored_bytes, 0u);

  bytes = Bytes("both:1", [](const ImageInfo& image) { return image.reference != "data:1"; });
  ASSERT_EQ(bytes.shares.size(), 1u);
  EXPECT_EQ(bytes.shares[0].reference, "library:1");
  EXPECT_EQ(bytes.hidden_stored_bytes, data.size());

  const uint64_t unique = bytes.unique_stored_bytes, metadata = bytes.metadata_bytes;
  RK_ASSERT_OK(store_->Remove("both:1"));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_GE(report->bytes_freed, unique);
  // Blocks may be a little larger than what lies in them.
  EXPECT_LE(report->bytes_freed, unique + metadata + 16 * kPageSize);
  EXPECT_EQ(Bytes("data:1").unique_stored_bytes, data.size());
}

TEST_F(ImageBytesTest, AFrameIsSharedAsAWhole) {
  const std::string frame = MakePages(64, 1);
  Take("all:1", {frame});
  Take("one_page:1", {frame.substr(0, kPageSize)});
  ImageBytes bytes = Bytes("all:1");
  EXPECT_EQ(bytes.unique_stored_bytes % kPageSize, 0u);
  EXPECT_GE(bytes.shared_stored_bytes, kPageSize);
  EXPECT_EQ(bytes.shared_bytes, bytes.shared_stored_bytes);
  bytes = Bytes("one_page:1");
  EXPECT_EQ(bytes.logical_bytes, kPageSize);
  EXPECT_EQ(bytes.shared_bytes, kPageSize);
  EXPECT_EQ(bytes.unique_bytes, 0u);
}

TEST_F(ImageBytesTest, TwoImagesOfOneContentShareEverything) {
  Take("a:1", {MakePages(64, 1)});
  Take("b:1", {MakePages(64, 1)});
  EXPECT_EQ(Bytes("a:1").unique_stored_bytes, 0u);
  ASSERT_EQ(Bytes("a:1").shares.size(), 1u);
  EXPECT_EQ(Bytes("a:1").shares[0].reference, "b:1");
  RK_ASSERT_OK(store_->Remove("b:1"));
  EXPECT_EQ(Bytes("a:1").shared_stored_bytes, 0u);
  EXPECT_EQ(Bytes("a:1").unique_bytes, 64 * kPageSize);
}

TEST_F(ImageBytesTest, ADamagedImageDoesNotHideTheOthers) {
  Take("a:1", {MakePages(64, 1)});
  std::vector<std::string> before = *ListDirectory(options_.path + "/packs");
  Take("b:1", {MakePages(64, 2)});
  const std::vector<std::string> after = *ListDirectory(options_.path + "/packs");
  for (const std::string& name : after) {
    if (name == before.front()) continue;
    ASSERT_EQ(truncate(absl::StrCat(options_.path, "/packs/", name).c_str(), 4096), 0);
  }
  Reopen();
  ImageBytes bytes = Bytes("a:1");
  EXPECT_EQ(bytes.unique_bytes, 64 * kPageSize);
  EXPECT_EQ(bytes.unread, std::vector<std::string>{"b:1"});
  EXPECT_EQ(Bytes("a:1", [](const ImageInfo&) { return false; }).unread, std::vector<std::string>{""});
  EXPECT_FALSE(store_->WhereBytesAre("b:1").ok());
  EXPECT_TRUE(absl::IsNotFound(store_->WhereBytesAre("c:1").status()));
}

TEST_F(ImageBytesTest, RemoveExactlyLeavesASuccessorAlone) {
  const ImageInfo first = Take("a:1", {MakePages(4, 1)});
  TestImage next;
  next.objects["memory"][0] = MakePages(4, 2);
  RK_ASSERT_OK(next.Commit(*store_, "a:1", "", /*replace=*/true));
  EXPECT_TRUE(absl::IsNotFound(store_->RemoveExactly(first)));
  next.ExpectIn(*store_, "a:1");
  RK_ASSERT_OK(store_->RemoveExactly(store_->Find("a:1").value()));
  EXPECT_TRUE(store_->List()->empty());
}

TEST_F(ImageBytesTest, CanBeCancelled) {
  TestImage image;
  image.objects[kObject][0] = MakePages(10, 1);
  RK_ASSERT_OK(image.Commit(*store_, "a:1"));
  const std::atomic<bool> cancel{true};
  EXPECT_TRUE(absl::IsCancelled(store_->WhereBytesAre("a:1", nullptr, &cancel).status()));
}

}  // namespace
}  // namespace rekindle::store
