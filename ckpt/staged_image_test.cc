#include "ckpt/staged_image.h"

#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

using store::kPageSize;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string PagemapImage(uint32_t pages_id, const std::vector<criu::PagemapEntry>& entries) {
  criu::Pagemap pagemap;
  pagemap.pages_id = pages_id;
  pagemap.entries = entries;
  return criu::SerializePagemap(pagemap);
}

class StagedImageTest : public store::StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
  }

  // Adds `staged` to a new image; on success commits it and opens it.
  absl::Status Add(const StagedImage& staged, const std::string& parent = "") {
    store::NewImageOptions options = store::Named("job:1");
    options.parent = parent;
    options.replace = true;
    auto writer = store_->NewImage(options);
    if (!writer.ok()) return writer.status();
    absl::Status status = AddToImage(staged, **writer, &manifest_);
    if (!status.ok()) return status;
    if (auto info = (*writer)->Commit(); !info.ok()) return info.status();
    image_ = store_->OpenImage("job:1").value();
    return absl::OkStatus();
  }

  std::string ReadPages(const std::string& object, uint64_t address, uint64_t pages) {
    std::string bytes(pages * kPageSize, '?');
    absl::Status status =
        image_->ReadPages(object, address, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
    return status.ok() ? bytes : status.ToString();
  }

  v1::JobManifest manifest_;
  std::unique_ptr<store::ImageReader> image_;
};

TEST_F(StagedImageTest, PagesGoToTheirAddressesAcrossPiecesAndHoles) {
  std::string task = store::MakePages(10, 1), shared = store::MakePages(3, 2);
  StagedImage staged;
  staged.files["inventory.img"] = "an inventory";
  staged.files["pagemap-70.img"] = PagemapImage(
      1, {{0x10000, 4, criu::kPagePresent, 0}, {0x20000, 9, 0, 0}, {0x400000, 6, criu::kPagePresent, 0}});
  staged.files["pagemap-shmem-9.img"] = PagemapImage(2, {{0x2000, 3, criu::kPagePresent, 0}});
  // One piece ends in the middle of an entry, one spans two.
  absl::Span<const std::byte> bytes = Bytes(task);
  staged.pages["pages-1.img"] = {bytes.subspan(0, 3 * kPageSize), bytes.subspan(3 * kPageSize, 5 * kPageSize),
                                 bytes.subspan(8 * kPageSize)};
  staged.pages["pages-2.img"] = {Bytes(shared)};
  EXPECT_EQ(staged.bytes(), 13 * kPageSize + staged.files["inventory.img"].size() +
                                staged.files["pagemap-70.img"].size() +
                                staged.files["pagemap-shmem-9.img"].size());
  absl::Status status = Add(staged);
  ASSERT_TRUE(status.ok()) << status;

  EXPECT_TRUE(ReadPages("mem/70", 0x10000, 4) == task.substr(0, 4 * kPageSize));
  EXPECT_TRUE(ReadPages("mem/70", 0x400000, 6) == task.substr(4 * kPageSize));
  EXPECT_TRUE(ReadPages("shm/9", 0x2000, 3) == shared);
  EXPECT_THAT(ReadPages("mem/70", 0x20000, 1), HasSubstr("OUT_OF_RANGE"));
  EXPECT_EQ(image_->ReadBlob("criu/inventory.img").value(), "an inventory");
  EXPECT_EQ(image_->ReadBlob("criu/pagemap-70.img").value(), staged.files["pagemap-70.img"]);
  std::vector<std::string> places;
  for (const v1::PagesObject& object : manifest_.pages())
    places.push_back(absl::StrCat(object.pages_id(), " ", object.object(), " ", object.pagemap_file()));
  EXPECT_THAT(places, UnorderedElementsAre("1 mem/70 pagemap-70.img", "2 shm/9 pagemap-shmem-9.img"));
}

TEST_F(StagedImageTest, PagemapOutOfOrderIsStoredByFileOffset) {
  std::string pages = store::MakePages(5, 3);
  StagedImage staged;
  staged.files["pagemap-7.img"] =
      PagemapImage(4, {{0x400000, 2, criu::kPagePresent, 0}, {0x10000, 3, criu::kPagePresent, 0}});
  staged.pages["pages-4.img"] = {Bytes(pages).subspan(0, kPageSize), Bytes(pages).subspan(kPageSize)};
  absl::Status status = Add(staged);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(manifest_.pages_size(), 1);
  EXPECT_EQ(manifest_.pages(0).object(), "pages/4");
  EXPECT_TRUE(ReadPages("pages/4", 0, 5) == pages);
}

TEST_F(StagedImageTest, TaskWithoutPagesNeedsNoPagesImage) {
  StagedImage staged;
  staged.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, 3, 0, 0}});
  staged.pages["pages-1.img"] = {};
  absl::Status status = Add(staged);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(manifest_.pages_size(), 0);
}

TEST_F(StagedImageTest, PagesThatDoNotFitTheirPagemapAreRefused) {
  std::string pages = store::MakePages(4, 1);
  for (uint64_t kept : {uint64_t{3}, uint64_t{5}}) {
    StagedImage staged;
    staged.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, kept, criu::kPagePresent, 0}});
    staged.pages["pages-1.img"] = {Bytes(pages)};
    absl::Status status = Add(staged);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("pagemap-7.img"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("16384"));
  }
}

TEST_F(StagedImageTest, MissingPagesOrMissingPagemapAreRefused) {
  std::string pages = store::MakePages(1, 1);
  StagedImage no_pages;
  no_pages.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, 1, criu::kPagePresent, 0}});
  EXPECT_EQ(Add(no_pages).code(), absl::StatusCode::kDataLoss);
  StagedImage no_pagemap;
  no_pagemap.pages["pages-1.img"] = {Bytes(pages)};
  absl::Status status = Add(no_pagemap);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pages-1.img"));
}

TEST_F(StagedImageTest, DamagedPagemapIsNamed) {
  StagedImage staged;
  staged.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, 1, criu::kPagePresent, 0}}).substr(0, 15);
  absl::Status status = Add(staged);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("pagemap-7.img"));
}

TEST_F(StagedImageTest, IncrementalAndSharedImagesAreRefused) {
  std::string pages = store::MakePages(1, 1);
  StagedImage incremental;
  incremental.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, 1, criu::kPageInParent, 0}});
  absl::Status status = Add(incremental);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--prev-images-dir"));

  StagedImage twice;
  twice.files["pagemap-7.img"] = PagemapImage(1, {{0x10000, 1, criu::kPagePresent, 0}});
  twice.files["pagemap-8.img"] = PagemapImage(1, {{0x10000, 1, criu::kPagePresent, 0}});
  twice.pages["pages-1.img"] = {Bytes(pages)};
  EXPECT_EQ(Add(twice).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(StagedImageTest, CopiedMemoryTakesItsPlaceAmongThePagesOfTheDump) {
  std::string dumped = store::MakePages(5, 1), copied = store::MakePages(7, 2);
  StagedImage staged;
  staged.files["inventory.img"] = "an inventory";
  staged.files["pagemap-70.img"] = PagemapImage(
      1, {{0x10000, 2, criu::kPagePresent, 0}, {0x20000, 1, 0, 0}, {0x30000, 3, criu::kPagePresent, 0}});
  staged.pages["pages-1.img"] = {Bytes(dumped).subspan(0, 3 * kPageSize),
                                 Bytes(dumped).subspan(3 * kPageSize)};
  staged.files["pagemap-71.img"] = PagemapImage(2, {});
  absl::Span<const std::byte> bytes = Bytes(copied);
  absl::Status status = AddCopiedMemory({{70,
                                          {{0x8000, bytes.subspan(0, kPageSize)},
                                           {0x12000, bytes.subspan(kPageSize, 2 * kPageSize)},
                                           {0x40000, bytes.subspan(3 * kPageSize, 2 * kPageSize)}}},
                                         {71, {{0x1000, bytes.subspan(5 * kPageSize, 2 * kPageSize)}}},
                                         {72, {}}},
                                        &staged);
  ASSERT_TRUE(status.ok()) << status;
  status = Add(staged);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(ReadPages("mem/70", 0x8000, 1) == copied.substr(0, kPageSize));
  EXPECT_TRUE(ReadPages("mem/70", 0x10000, 4) ==
              dumped.substr(0, 2 * kPageSize) + copied.substr(kPageSize, 2 * kPageSize));
  EXPECT_TRUE(ReadPages("mem/70", 0x30000, 3) == dumped.substr(2 * kPageSize));
  EXPECT_TRUE(ReadPages("mem/70", 0x40000, 2) == copied.substr(3 * kPageSize, 2 * kPageSize));
  EXPECT_TRUE(ReadPages("mem/71", 0x1000, 2) == copied.substr(5 * kPageSize));
  auto pagemap = criu::ParsePagemap(staged.files["pagemap-70.img"]).value();
  EXPECT_EQ(pagemap.pages_id, 1u);
  EXPECT_EQ(pagemap.entries.size(), 6u);
  EXPECT_EQ(pagemap.present_pages(), 10u);
}

TEST_F(StagedImageTest, CopiedMemoryThatDoesNotFitTheDumpIsRefused) {
  std::string pages = store::MakePages(4, 1);
  std::vector<criu::PagemapEntry> pagemap = {{0x10000, 2, criu::kPagePresent, 0}};
  auto add = [&](pid_t pid, uint64_t address) {
    StagedImage staged;
    staged.files["pagemap-70.img"] = PagemapImage(1, pagemap);
    staged.pages["pages-1.img"] = {Bytes(pages).subspan(0, 2 * kPageSize)};
    return AddCopiedMemory({{pid, {{address, Bytes(pages).subspan(2 * kPageSize)}}}}, &staged).code();
  };
  EXPECT_EQ(add(70, 0x12000), absl::StatusCode::kOk);
  EXPECT_EQ(add(71, 0x12000), absl::StatusCode::kDataLoss);
  // Pages that the dump says are nowhere, or in its parent.
  pagemap[0].flags = 0;
  EXPECT_EQ(add(70, 0x11000), absl::StatusCode::kDataLoss);
}

TEST_F(StagedImageTest, OfPagesThatAreInBothTheDumpsAreTaken) {
  std::string dumped = store::MakePages(4, 1), copied = store::MakePages(9, 2);
  StagedImage staged;
  staged.files["inventory.img"] = "an inventory";
  staged.files["pagemap-70.img"] = PagemapImage(1, {{0x11000, 2, criu::kPagePresent, 0},
                                                    {0x15000, 1, criu::kPagePresent, 0},
                                                    {0x19000, 1, criu::kPagePresent, 0}});
  staged.pages["pages-1.img"] = {Bytes(dumped)};
  absl::Status status = AddCopiedMemory({{70, {{0x10000, Bytes(copied)}}}}, &staged);
  ASSERT_TRUE(status.ok()) << status;
  status = Add(staged);
  ASSERT_TRUE(status.ok()) << status;
  std::string expected = copied + dumped.substr(3 * kPageSize);
  expected.replace(kPageSize, 2 * kPageSize, dumped, 0, 2 * kPageSize);
  expected.replace(5 * kPageSize, kPageSize, dumped, 2 * kPageSize, kPageSize);
  EXPECT_TRUE(ReadPages("mem/70", 0x10000, 10) == expected);
}

TEST_F(StagedImageTest, UnchangedMemoryIsTheParents) {
  store::TestImage parent;
  const std::string before = store::MakePages(16, 1), dumped = store::MakePages(2, 2),
                    copied = store::MakePages(2, 3);
  parent.objects["mem/70"][0x10000] = before;
  RK_ASSERT_OK(parent.Commit(*store_, "parent:1"));
  auto make = [&](uint64_t unchanged_pages) {
    StagedImage staged;
    staged.files["inventory.img"] = "an inventory";
    staged.files["pagemap-70.img"] = PagemapImage(1, {{0x13000, 2, criu::kPagePresent, 0}});
    staged.pages["pages-1.img"] = {Bytes(dumped)};
    // The dump has two pages of the first range, too.
    EXPECT_TRUE(AddCopiedMemory({{70,
                                  {{0x10000, {}, 6 * kPageSize},
                                   {0x16000, Bytes(copied)},
                                   {0x18000, {}, unchanged_pages * kPageSize}}}},
                                &staged)
                    .ok());
    return staged;
  };
  StagedImage staged = make(8);
  EXPECT_EQ(staged.unchanged_bytes(), 12 * kPageSize);
  absl::Status status = Add(staged, "parent:1");
  ASSERT_TRUE(status.ok()) << status;
  std::string expected = before;
  expected.replace(3 * kPageSize, 2 * kPageSize, dumped);
  expected.replace(6 * kPageSize, 2 * kPageSize, copied);
  EXPECT_TRUE(ReadPages("mem/70", 0x10000, 16) == expected);
  // The pagemap is whole: the image stands alone.
  EXPECT_EQ(criu::ParsePagemap(image_->ReadBlob("criu/pagemap-70.img").value())->present_pages(), 16u);

  EXPECT_EQ(Add(staged).code(), absl::StatusCode::kFailedPrecondition) << "there is no parent";
  EXPECT_EQ(Add(make(9), "parent:1").code(), absl::StatusCode::kFailedPrecondition) << "it has less";
}

TEST_F(StagedImageTest, NeededFilesAreThoseThatHadTheirNames) {
  StagedImage staged;
  staged.files["files.img"] = criu::MakeFiles({{1, "/opt/data", 5}, {2, "/opt/deleted", 7}});
  staged.files["remap-fpath.img"] = criu::MakeGhosts({2});
  RecordNeededFiles(staged, &manifest_);
  ASSERT_EQ(manifest_.files_size(), 1);
  EXPECT_EQ(manifest_.files(0).path(), "/opt/data");
  EXPECT_EQ(manifest_.files(0).size(), 5u);
  EXPECT_TRUE(manifest_.files(0).has_size());
  EXPECT_FALSE(manifest_.files(0).mapped());
}

TEST_F(StagedImageTest, OfNeededFilesItIsKnownWhichAreMapped) {
  StagedImage staged;
  staged.files["files.img"] = criu::MakeFiles({{1, "/opt/open", 5}, {2, "/opt/mapped", 7}});
  criu::Vma shared = criu::AnonymousArea(0x1000, 0x1000), of_file = criu::AnonymousArea(0x2000, 0x1000);
  shared.shmid = 1;
  shared.status = 1u << 0 | 1u << 8;
  of_file.shmid = 2;
  of_file.status = 1u << 0 | 1u << 6;
  staged.files["mm-70.img"] = criu::MakeMm({shared, of_file});
  RecordNeededFiles(staged, &manifest_);
  ASSERT_EQ(manifest_.files_size(), 2);
  EXPECT_FALSE(manifest_.files(0).mapped()) << "that is the number of shared memory";
  EXPECT_TRUE(manifest_.files(1).mapped());
}

}  // namespace
}  // namespace rekindle::ckpt
