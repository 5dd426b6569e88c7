#include "dedup_store/store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

using testing::Test;

TEST(Reference, IsCheckedAndCompleted) {
  EXPECT_EQ(*NormalizeReference("train"), "train:latest");
  EXPECT_EQ(*NormalizeReference("a/b.c_d-e:V1.0"), "a/b.c_d-e:V1.0");
  for (const char* bad : {"", ":x", "a:", "A", "a//b", "-a", "a-", "a:-x", "a:b:c", "a b", "a..b", "a/:t"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(NormalizeReference(bad).status())) << bad;
  }
  EXPECT_TRUE(NormalizeReference(std::string(255, 'a') + ":" + std::string(128, 't')).ok());
  EXPECT_FALSE(NormalizeReference(std::string(256, 'a')).ok());
  EXPECT_FALSE(NormalizeReference("a:" + std::string(129, 't')).ok());
}

TEST(LabelsTest, AreSmall) {
  EXPECT_TRUE(CheckLabels({{"note", std::string(kMostLabelBytes - 4, 'x')}}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLabels({{"note", std::string(kMostLabelBytes - 3, 'x')}})));
}

TestImage SparseImage(uint64_t seed) {
  TestImage image;
  std::mt19937_64 random(seed);
  for (int object = 0; object < 4; ++object) {
    uint64_t address = random() % 1000 * kPageSize;
    auto& ranges = image.objects[absl::StrCat("pages-", object)];
    for (int i = 0; i < 12; ++i) {
      Content content = i % 3 == 0 ? Content::kRandom : i % 3 == 1 ? Content::kText : Content::kZero;
      std::string pages = MakePages(random() % 90 + 1, random(), content);
      ranges[address] = pages;
      // Sometimes the next range follows without a gap.
      address += pages.size() + (random() % 2 ? random() % 5000 * kPageSize : 0);
    }
  }
  for (int i = 0; i < 40; ++i) {
    image.blobs[absl::StrCat("core-", i, ".img")] =
        MakePages(3, random(), Content::kText).substr(0, random() % 9000);
  }
  image.blobs["empty"] = "";
  return image;
}

TEST_F(StoreTest, GivesBackSparseImages) {
  Reopen();
  for (uint64_t seed : {1, 2, 3}) {
    RK_ASSERT_OK(SparseImage(seed).Commit(*store_, absl::StrCat("sparse:", seed)));
  }
  Reopen();
  for (uint64_t seed : {1, 2, 3}) SparseImage(seed).ExpectIn(*store_, absl::StrCat("sparse:", seed));
  ExpectWhole();
  auto list = store_->List();
  RK_ASSERT_OK(list);
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[0].reference, "sparse:3");
  EXPECT_EQ((*list)[2].reference, "sparse:1");
}

TEST_F(StoreTest, KeepsEmptyImagesAndEmptyObjects) {
  Reopen();
  TestImage empty;
  RK_ASSERT_OK(empty.Commit(*store_, "empty"));
  empty.ExpectIn(*store_, "empty");
  empty.objects["nothing"][0] = "";
  RK_ASSERT_OK(empty.Commit(*store_, "nothing"));
  auto reader = store_->OpenImage("nothing");
  RK_ASSERT_OK(reader);
  EXPECT_TRUE((*reader)->Runs("nothing")->empty());
  EXPECT_TRUE(absl::IsNotFound((*reader)->Runs("else").status()));
  EXPECT_TRUE(absl::IsNotFound((*reader)->ReadBlob("else").status()));
  std::byte page[kPageSize];
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->ReadPages("nothing", 0, page)));
  PageRun range{0, 1, false};
  auto ignore = [](uint64_t, absl::Span<const std::byte>) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->ReadRanges("nothing", {&range, 1}, ignore)));
}

TEST_F(StoreTest, ChildOfAParentGrowsByWhatChanged) {
  Reopen();
  constexpr size_t kPages = 25600;
  TestImage image;
  image.objects["memory"][0x10000000] = MakePages(kPages, 5);
  RK_ASSERT_OK(image.Commit(*store_, "job:1"));
  std::string& pages = image.objects["memory"][0x10000000];
  std::mt19937_64 random(6);
  for (size_t i = 0; i < kPages / 100; ++i) pages[random() % pages.size()] ^= 1;
  auto info = image.Commit(*store_, "job:2", "job:1");
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.logical_bytes, kPages * kPageSize);
  EXPECT_GE(info->stats.parent_bytes, (kPages - kPages / 100) * kPageSize);
  EXPECT_LE(info->stats.stored_bytes + info->stats.metadata_bytes, kPages * kPageSize * 15 / 1000);
  EXPECT_EQ(info->parent_digest, store_->Find("job:1")->digest);
  // The child needs nothing of its parent.
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Gc({}));
  image.ExpectIn(*store_, "job:2");
  ExpectWhole();
}

TEST_F(StoreTest, MetadataStaysSmall) {
  Reopen();
  TestImage image;
  image.objects["memory"][0] = MakePages(25600, 9);
  auto info = image.Commit(*store_, "big");
  RK_ASSERT_OK(info);
  EXPECT_LE(info->stats.metadata_bytes, info->stats.logical_bytes * 15 / 1000);
  auto stats = store_->Stats();
  RK_ASSERT_OK(stats);
  EXPECT_GE(stats->pack_bytes, info->stats.stored_bytes);
  EXPECT_EQ(stats->images, 1u);
  EXPECT_EQ(stats->packs, 1u);
}

TEST_F(StoreTest, FindsEqualContentElsewhere) {
  Reopen();
  const std::string library = MakePages(300, 7);
  TestImage first;
  first.objects["a"][0x1000] = library;
  RK_ASSERT_OK(first.Commit(*store_, "first"));
  TestImage second;
  // Shifted by one page, interrupted, in another object, twice.
  second.objects["b"][0x700000] = MakePages(1, 100) + library.substr(kPageSize) + MakePages(1, 101);
  second.objects["c"][0x9000] =
      library.substr(50 * kPageSize, 10 * kPageSize) + MakePages(1, 102) + MakePages(1, 102);
  auto info = second.Commit(*store_, "second");
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.new_bytes, 3 * kPageSize);
  EXPECT_EQ(info->stats.shared_bytes, (299 + 10 + 1) * kPageSize);
  second.ExpectIn(*store_, "second");
  RK_ASSERT_OK(store_->Remove("first"));
  RK_ASSERT_OK(store_->Gc({}));
  second.ExpectIn(*store_, "second");
  ExpectWhole();
}

TEST_F(StoreTest, StoresNoZeroPages) {
  Reopen();
  TestImage image;
  image.objects["zero"][0] = MakePages(1000, 0, Content::kZero);
  image.objects["mixed"][0] = MakePages(4, 1) + MakePages(3, 0, Content::kZero) + MakePages(5, 2);
  auto info = image.Commit(*store_, "zeros");
  RK_ASSERT_OK(info);
  EXPECT_EQ(info->stats.zero_bytes, 1003 * kPageSize);
  EXPECT_EQ(info->stats.stored_bytes, 9 * kPageSize);
  auto reader = store_->OpenImage("zeros");
  RK_ASSERT_OK(reader);
  auto runs = (*reader)->Runs("mixed");
  RK_ASSERT_OK(runs);
  ASSERT_EQ(runs->size(), 3u);
  EXPECT_TRUE((*runs)[1].zero);
  EXPECT_EQ((*runs)[1].address, 4 * kPageSize);
  EXPECT_EQ((*runs)[1].pages, 3u);
  image.ExpectIn(*store_, "zeros");
}

TEST_F(StoreTest, CompressesWhatShrinksOnly) {
  Reopen();
  TestImage text, noise;
  text.objects["m"][0] = MakePages(500, 1, Content::kText);
  noise.objects["m"][0] = MakePages(500, 2);
  auto text_info = text.Commit(*store_, "text");
  auto noise_info = noise.Commit(*store_, "noise");
  RK_ASSERT_OK(text_info);
  RK_ASSERT_OK(noise_info);
  EXPECT_LT(text_info->stats.stored_bytes, text_info->stats.new_bytes / 3);
  EXPECT_EQ(noise_info->stats.stored_bytes, noise_info->stats.new_bytes);
  text.ExpectIn(*store_, "text");
  noise.ExpectIn(*store_, "noise");
}

TEST_F(StoreTest, SparingImagesCompressOnlyWhatShrinksMuch) {
  Reopen();
  // As weights are: floats of like size, whose exponents shrink and whose mantissas do not.
  std::string weights = MakePages(500, 3);
  for (size_t i = 3; i < weights.size(); i += 4) weights[i] = '\x3d';
  std::string changed = weights;
  for (size_t i = 0; i < changed.size(); i += kPageSize) changed[i] ^= 1;
  TestImage first, sparing, text;
  first.objects["m"][0] = weights;
  sparing.objects["m"][0] = changed;
  text.objects["m"][0] = MakePages(500, 1, Content::kText);
  auto first_info = first.Commit(*store_, "first");
  RK_ASSERT_OK(first_info);
  EXPECT_LT(first_info->stats.stored_bytes, first_info->stats.new_bytes * 9 / 10);

  NewImageOptions options;
  options.sparing = true;
  options.reference = "sparing";
  auto sparing_info = sparing.Commit(*store_, options);
  RK_ASSERT_OK(sparing_info);
  EXPECT_EQ(sparing_info->stats.stored_bytes, sparing_info->stats.new_bytes);
  options.reference = "text";
  auto text_info = text.Commit(*store_, options);
  RK_ASSERT_OK(text_info);
  EXPECT_LT(text_info->stats.stored_bytes, text_info->stats.new_bytes / 3);
  for (const auto& [name, image] : {std::pair("sparing:latest", &sparing), std::pair("text:latest", &text)})
    image->ExpectIn(*store_, name);
  ExpectWhole();
}

TEST_F(StoreTest, TinyBlobsTakeLittleRoom) {
  Reopen();
  TestImage image;
  for (int i = 0; i < 100; ++i) {
    image.blobs[absl::StrCat("file-", i)] =
        absl::StrCat("head of a small file ", i, std::string(300, 'x'), i * i);
  }
  auto info = image.Commit(*store_, "blobs");
  RK_ASSERT_OK(info);
  EXPECT_LT(info->stats.stored_bytes, 8192u);
  EXPECT_LT(info->stats.stored_bytes + info->stats.metadata_bytes, 24u << 10);
  image.ExpectIn(*store_, "blobs");
}

TEST_F(StoreTest, FindsImagesByNameAndDigest) {
  Reopen();
  TestImage a, b;
  a.blobs["x"] = "a";
  b.blobs["x"] = "b";
  auto info_a = a.Commit(*store_, "team/job:1");
  auto info_b = b.Commit(*store_, "team/job");
  RK_ASSERT_OK(info_a);
  RK_ASSERT_OK(info_b);
  EXPECT_NE(info_a->digest, info_b->digest);
  EXPECT_EQ(info_a->digest.size(), 71u);
  EXPECT_EQ(store_->Find("team/job")->digest, info_b->digest);
  EXPECT_EQ(store_->Find("team/job:latest")->digest, info_b->digest);
  EXPECT_EQ(store_->Find(info_a->digest)->reference, "team/job:1");
  EXPECT_EQ(store_->Find(info_a->digest.substr(0, 7 + 12))->reference, "team/job:1");
  EXPECT_EQ(store_->Find("team/job@" + info_a->digest)->reference, "team/job:1");
  EXPECT_TRUE(absl::IsNotFound(store_->Find("other@" + info_a->digest).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Find(info_a->digest.substr(0, 7 + 11)).status()));
  auto missing = store_->Find("team/jb:1").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(missing.message().find("team/job:1"), absl::string_view::npos) << missing;
  EXPECT_TRUE(absl::IsNotFound(store_->Find("sha256:" + std::string(64, '0')).status()));
  // The same content has the same digest, whatever its name and wherever its pages lie.
  auto again = a.Commit(*store_, "copy");
  RK_ASSERT_OK(again);
  EXPECT_EQ(again->digest, info_a->digest);
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Remove(info_a->digest)));
  RK_ASSERT_OK(store_->Remove("copy"));
  RK_ASSERT_OK(store_->Remove(info_a->digest));
  EXPECT_TRUE(absl::IsNotFound(store_->Find("team/job:1").status()));
}

TEST_F(StoreTest, ReplacesOnlyWhenAsked) {
  Reopen();
  TestImage a, b;
  a.blobs["x"] = "a";
  b.blobs["x"] = "b";
  RK_ASSERT_OK(a.Commit(*store_, "job"));
  EXPECT_TRUE(absl::IsAlreadyExists(b.Commit(*store_, "job").status()));
  a.ExpectIn(*store_, "job");
  RK_ASSERT_OK(b.Commit(*store_, "job", "job", true));
  b.ExpectIn(*store_, "job");
  EXPECT_EQ(store_->List()->size(), 1u);
  EXPECT_TRUE(absl::IsNotFound(a.Commit(*store_, "new", "no-such-parent").status()));
}

TEST_F(StoreTest, ChecksItsArguments) {
  Reopen();
  auto writer = store_->NewImage(Named("x"));
  RK_ASSERT_OK(writer);
  const std::string pages = MakePages(2, 1);
  auto span = absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(pages.data()), pages.size());
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->AddPages("m", 5, span)));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->AddPages("m", 0, span.subspan(1))));
  RK_ASSERT_OK((*writer)->AddPages("m", 0x10000, span));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->AddPages("m", 0x11000, span)));
  RK_ASSERT_OK((*writer)->AddBlob("b", "x"));
  EXPECT_TRUE(absl::IsAlreadyExists((*writer)->AddBlob("b", "x")));
  EXPECT_TRUE(absl::IsAlreadyExists((*writer)->AddBlob("m", "x")));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->AddBlob("", "x")));
  RK_ASSERT_OK((*writer)->Commit());
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Commit().status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->NewImage(Named("Bad")).status()));
}

TEST_F(StoreTest, CancelledOrDroppedWritersLeaveNothing) {
  Reopen();
  const std::string pages = MakePages(3000, 1);
  auto span = absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(pages.data()), pages.size());
  auto writer = store_->NewImage(Named("x"));
  RK_ASSERT_OK(writer);
  RK_ASSERT_OK((*writer)->AddPages("m", 0, span));
  uint64_t last = 0, total = 0;
  auto status = (*writer)->Commit([&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
    return false;
  });
  EXPECT_TRUE(absl::IsCancelled(status.status())) << status.status();
  EXPECT_EQ(total, span.size());
  writer->reset();
  auto dropped = store_->NewImage(Named("y"));
  RK_ASSERT_OK(dropped);
  RK_ASSERT_OK((*dropped)->AddPages("m", 0, span));
  dropped->reset();
  EXPECT_TRUE(store_->List()->empty());
  EXPECT_TRUE(ListDirectory(options_.path + "/packs")->empty());
}

TEST_F(StoreTest, OneThatWaitsForAnotherCanBeCancelled) {
  Reopen();
  TestImage image;
  image.objects["m"][0] = MakePages(10, 1);
  const std::string& pages = image.objects["m"][0];
  auto span = absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(pages.data()), pages.size());
  std::unique_ptr<ImageWriter> writers[2];
  for (int i : {0, 1}) {
    auto writer = store_->NewImage(Named(i == 0 ? "slow" : "waits"));
    RK_ASSERT_OK(writer);
    writers[i] = *std::move(writer);
    RK_ASSERT_OK(writers[i]->AddPages("m", 0, span));
  }
  absl::Notification claimed, cancelled;
  absl::Status slow;
  std::thread thread([&] {
    slow = writers[0]
               ->Commit([&](uint64_t, uint64_t) {
                 if (!claimed.HasBeenNotified()) claimed.Notify();
                 // Not for ever: one that can't be cancelled waits for this.
                 cancelled.WaitForNotificationWithTimeout(absl::Seconds(20));
                 return true;
               })
               .status();
  });
  claimed.WaitForNotification();
  int asked_at_the_end = 0;
  auto waits = writers[1]->Commit(
      [&](uint64_t done, uint64_t total) { return done < total || ++asked_at_the_end < 2; });
  cancelled.Notify();
  thread.join();
  EXPECT_TRUE(absl::IsCancelled(waits.status())) << waits.status();
  RK_ASSERT_OK(slow);
  image.ExpectIn(*store_, "slow");
  EXPECT_EQ(store_->List()->size(), 1u);
}

TEST_F(StoreTest, TellsWhatDiffers) {
  Reopen();
  TestImage a, b;
  a.objects["heap"][0x1000] = MakePages(10, 1);
  a.objects["gone"][0] = MakePages(2, 2);
  a.blobs["same"] = "s";
  a.blobs["other"] = "1";
  b = a;
  b.objects.erase("gone");
  b.objects["heap"][0x1000][3 * kPageSize] ^= 1;
  b.objects["heap"][0x1000] += MakePages(2, 9);
  b.blobs["other"] = "22";
  RK_ASSERT_OK(a.Commit(*store_, "a"));
  RK_ASSERT_OK(b.Commit(*store_, "b"));
  const std::atomic<bool> cancel{true};
  EXPECT_TRUE(absl::IsCancelled(store_->Diff("a", "b", &cancel).status()));
  auto differences = store_->Diff("a", "b");
  RK_ASSERT_OK(differences);
  std::map<std::string, ObjectDifference> by_name;
  for (const auto& d : *differences) by_name[d.name] = d;
  ASSERT_EQ(by_name.size(), 4u);
  EXPECT_EQ(by_name["heap"].equal_bytes, 9 * kPageSize);
  EXPECT_EQ(by_name["heap"].bytes_b, 12 * kPageSize);
  ASSERT_EQ(by_name["heap"].changed.size(), 2u);
  EXPECT_EQ(by_name["heap"].changed[0].address, 0x4000u);
  EXPECT_EQ(by_name["heap"].changed[1].pages, 2u);
  EXPECT_EQ(by_name["gone"].bytes_a, 2 * kPageSize);
  EXPECT_EQ(by_name["gone"].bytes_b, 0u);
  EXPECT_EQ(by_name["same"].equal_bytes, 1u);
  EXPECT_EQ(by_name["other"].equal_bytes, 0u);
}

TEST_F(StoreTest, GcFreesWhatNothingReaches) {
  Reopen();
  std::string common = MakePages(200, 1);
  TestImage a, b;
  a.objects["m"][0] = common + MakePages(2000, 2) + MakePages(700, 3, Content::kText);
  b.objects["m"][0] = common + MakePages(100, 4);
  RK_ASSERT_OK(a.Commit(*store_, "a"));
  RK_ASSERT_OK(b.Commit(*store_, "b", "a"));
  RK_ASSERT_OK(store_->Remove("a"));
  uint64_t before = store_->Stats()->pack_bytes;
  auto dry = store_->Gc({.dry_run = true});
  RK_ASSERT_OK(dry);
  EXPECT_GE(dry->bytes_freed, 1900 * kPageSize);
  EXPECT_EQ(store_->Stats()->pack_bytes, before);
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_rewritten, 1u);
  EXPECT_GE(before - store_->Stats()->pack_bytes, 1900 * kPageSize);
  b.ExpectIn(*store_, "b");
  ExpectWhole();
  // Content that gc took is stored anew, and found again.
  auto info = a.Commit(*store_, "a");
  RK_ASSERT_OK(info);
  EXPECT_GE(info->stats.new_bytes, 1900 * kPageSize);
  EXPECT_EQ(a.Commit(*store_, "a2")->stats.new_bytes, 0u);
  a.ExpectIn(*store_, "a");
  for (const char* name : {"a", "a2", "b"}) RK_ASSERT_OK(store_->Remove(name));
  RK_ASSERT_OK(store_->Gc({}));
  EXPECT_TRUE(ListDirectory(options_.path + "/packs")->empty());
  EXPECT_EQ(store_->Stats()->packs, 0u);
  ExpectWhole();
}

TEST_F(StoreTest, AReaderKeepsItsImageThroughGc) {
  Reopen();
  TestImage image;
  image.objects["m"][0] = MakePages(600, 1);
  RK_ASSERT_OK(image.Commit(*store_, "a"));
  auto reader = store_->OpenImage("a");
  RK_ASSERT_OK(reader);
  RK_ASSERT_OK(store_->Remove("a"));
  RK_ASSERT_OK(store_->Gc({}));
  std::string got(600 * kPageSize, '\0');
  RK_ASSERT_OK((*reader)->ReadPages("m", 0, {reinterpret_cast<std::byte*>(got.data()), got.size()}));
  EXPECT_TRUE(got == image.objects["m"][0]);
  reader->reset();
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 1u);
}

TEST_F(StoreTest, IndexFilesAreMergedAndFoundThrough) {
  Reopen();
  std::vector<TestImage> images(30);
  for (size_t i = 0; i < images.size(); ++i) {
    images[i].objects["m"][0] = MakePages(40, 1000 + i);
    RK_ASSERT_OK(images[i].Commit(*store_, absl::StrCat("image:", i)));
  }
  auto indexes = ListDirectory(options_.path + "/index");
  RK_ASSERT_OK(indexes);
  auto merged = std::count_if(indexes->begin(), indexes->end(),
                              [](const std::string& name) { return absl::EndsWith(name, ".idx"); });
  EXPECT_GE(merged, 1);
  EXPECT_LE(merged, 6);
  for (size_t i = 0; i < images.size(); ++i) {
    auto info = images[i].Commit(*store_, absl::StrCat("again:", i));
    RK_ASSERT_OK(info);
    EXPECT_EQ(info->stats.new_bytes, 0u) << i;
  }
  ExpectWhole();
  indexes = ListDirectory(options_.path + "/index");
  RK_ASSERT_OK(indexes);
  // Without the index files everything is still there and found; repair makes them anew.
  for (const std::string& name : *indexes) {
    RK_ASSERT_OK(RemoveTree(options_.path + "/index/" + name));
  }
  Reopen();
  EXPECT_EQ(images[0].Commit(*store_, "once-more")->stats.new_bytes, 0u);
  auto broken = store_->Fsck({});
  RK_ASSERT_OK(broken);
  EXPECT_FALSE(broken->problems.empty());
  EXPECT_TRUE(broken->lost_images.empty());
  RK_ASSERT_OK(Repair());
  ExpectWhole();
}

TEST_F(StoreTest, ListsAThousandImages) {
  Reopen();
  // Tiny images: what is tested is that the catalog alone answers.
  for (int i = 0; i < 100; ++i) {
    TestImage image;
    image.blobs["n"] = absl::StrCat(i);
    RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("many:", i)));
  }
  RK_ASSERT_OK(RemoveTree(options_.path + "/packs"));
  EXPECT_EQ(store_->List()->size(), 100u);
  EXPECT_EQ(store_->Find("many:7")->reference, "many:7");
}

// Each image begins to store only when the others have begun, so that they all bring the same pages at one
// time.
TEST_F(StoreTest, ImagesWrittenAtOnceStoreEqualPagesOnce) {
  Reopen();
  constexpr size_t kImages = 4;
  constexpr uint64_t kSharedPages = 4000;
  for (bool one_fails : {false, true}) {
    SCOPED_TRACE(one_fails);
    const std::string shared = MakePages(kSharedPages, 900 + one_fails);
    std::vector<TestImage> images(kImages);
    std::vector<uint64_t> fresh(kImages);
    std::atomic<size_t> begun{0};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kImages; ++i) {
      // At another address, and in another order, in each.
      images[i].objects["m"][i << 30] =
          shared.substr(i * 500 * kPageSize) + shared.substr(0, i * 500 * kPageSize);
      images[i].objects["own"][0] = MakePages(50, 2000 + 100 * one_fails + i);
      threads.emplace_back([&, i] {
        NewImageOptions options = Named(absl::StrCat("at-once-", one_fails ? "b" : "a", ":", i));
        auto writer = store_->NewImage(options);
        ASSERT_TRUE(writer.ok());
        for (const auto& [name, ranges] : images[i].objects) {
          for (const auto& [address, pages] : ranges) {
            auto bytes =
                absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(pages.data()), pages.size());
            ASSERT_TRUE((*writer)->AddPages(name, address, bytes).ok());
          }
        }
        bool first = true;
        auto info = (*writer)->Commit([&](uint64_t, uint64_t) {
          if (std::exchange(first, false)) ++begun;
          while (begun < kImages) std::this_thread::yield();
          return !(one_fails && i == 1);
        });
        if (one_fails && i == 1) {
          EXPECT_TRUE(absl::IsCancelled(info.status())) << info.status();
          return;
        }
        ASSERT_TRUE(info.ok()) << info.status();
        fresh[i] = info->stats.new_bytes;
      });
    }
    for (std::thread& thread : threads) thread.join();
    uint64_t total = 0;
    for (uint64_t bytes : fresh) total += bytes;
    if (!one_fails) {
      EXPECT_EQ(total, (kSharedPages + kImages * 50) * kPageSize);
    }
    for (size_t i = 0; i < kImages; ++i) {
      if (one_fails && i == 1) continue;
      images[i].ExpectIn(*store_, absl::StrCat("at-once-", one_fails ? "b" : "a", ":", i));
    }
  }
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
  // What one image had stored for another outlives it.
  RK_ASSERT_OK(store_->Remove("at-once-a:0"));
  RK_ASSERT_OK(store_->Remove("at-once-a:3"));
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
}

TEST_F(StoreTest, ReadersWritersAndGcAtOnce) {
  Reopen();
  TestImage base;
  base.objects["m"][0] = MakePages(300, 1) + MakePages(100, 2, Content::kText);
  RK_ASSERT_OK(base.Commit(*store_, "base"));
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  auto check = [&](const absl::Status& status, const char* what) {
    if (status.ok()) return;
    ++failures;
    ADD_FAILURE() << what << ": " << status;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 6; ++round) {
        TestImage image = base;
        image.objects["m"][0].replace(50 * kPageSize, kPageSize, MakePages(1, 100 * t + round));
        image.objects["own"][0x5000] = MakePages(20, 7000 + 100 * t + round);
        std::string name = absl::StrCat("w", t, ":", round);
        check(image.Commit(*store_, name, "base").status(), "commit");
        auto difference = image.Compare(*store_, name);
        check(difference.status(), "compare");
        if (difference.ok() && !difference->empty()) check(absl::DataLossError(*difference), "compare");
        if (round % 2) check(store_->Remove(name), "remove");
      }
      stop = true;
    });
  }
  threads.emplace_back([&] {
    while (!stop) check(store_->Gc({}).status(), "gc");
  });
  threads.emplace_back([&] {
    while (!stop) check(base.Compare(*store_, "base").status(), "read base");
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
  base.ExpectIn(*store_, "base");
}

TEST_F(StoreTest, OneThatIsAwayIsLeftAlone) {
  Reopen();
  TestImage image;
  image.objects["m"][0] = MakePages(4, 1);
  const auto info = image.Commit(*store_, Named("job:1"));
  RK_ASSERT_OK(info);
  const std::string elsewhere = options_.path + ".away";
  ASSERT_EQ(::rename(options_.path.c_str(), elsewhere.c_str()), 0);
  // As a folder in which a file system is mounted looks while that is not.
  ASSERT_EQ(::mkdir(options_.path.c_str(), 0700), 0);
  EXPECT_TRUE(absl::IsUnavailable(store_->CheckIsThere()));
  EXPECT_TRUE(absl::IsUnavailable(image.Commit(*store_, Named("job:2")).status()));
  EXPECT_TRUE(absl::IsUnavailable(store_->Remove("job:1")));
  EXPECT_TRUE(absl::IsUnavailable(store_->PutNote(*info, kWorkingSetNote, "note")));
  EXPECT_TRUE(absl::IsUnavailable(store_->Gc(GcOptions()).status()));
  EXPECT_TRUE(std::filesystem::is_empty(options_.path));
  EXPECT_FALSE(store_->WasRemoved());
  std::filesystem::remove(options_.path);
  ASSERT_EQ(::rename(elsewhere.c_str(), options_.path.c_str()), 0);
  RK_ASSERT_OK(store_->CheckIsThere());
  RK_ASSERT_OK(image.Commit(*store_, Named("job:2")));
  ExpectWhole();
}

TEST_F(StoreTest, OneThatWasRemovedIsToldFromOneThatIsAway) {
  for (const bool with_its_folder : {true, false}) {
    Reopen();
    EXPECT_FALSE(store_->WasRemoved());
    for (const auto& each : std::filesystem::directory_iterator(options_.path)) {
      if (each.path().filename() != "FORMAT") std::filesystem::remove_all(each.path());
    }
    EXPECT_TRUE(absl::IsUnavailable(store_->CheckIsThere()));
    EXPECT_FALSE(store_->WasRemoved()) << "there is something of it";
    std::filesystem::remove(options_.path + "/FORMAT");
    if (with_its_folder) std::filesystem::remove(options_.path);
    EXPECT_TRUE(absl::IsUnavailable(store_->CheckIsThere()));
    EXPECT_TRUE(store_->WasRemoved());
  }
}

}  // namespace
}  // namespace rekindle::store
