// What is kept beside images.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class StoreNotesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    first_.objects["m"][0] = MakePages(20, 1);
    second_.objects["m"][0] = MakePages(20, 2);
  }

  ImageInfo Commit(const TestImage& image, const std::string& reference) {
    auto info = image.Commit(*store_, reference, "", /*replace=*/true);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : ImageInfo();
  }
  void Put(const ImageInfo& image, const std::string& bytes) {
    RK_ASSERT_OK(store_->PutNote(image, kWorkingSetNote, bytes));
  }
  bool Has(const ImageInfo& image) {
    auto note = store_->GetNote(image.digest, kWorkingSetNote);
    EXPECT_TRUE(note.ok() || absl::IsNotFound(note.status())) << note.status();
    return note.ok();
  }
  std::string PathOf(const ImageInfo& image) {
    return absl::StrCat(options_.path, "/notes/", image.digest.substr(7), ".working-set");
  }
  std::vector<std::string> Files(const std::string& folder) {
    return ListDirectory(absl::StrCat(options_.path, "/", folder)).value();
  }

  TestImage first_, second_;
};

TEST_F(StoreNotesTest, AreGivenBackAndReplaced) {
  const ImageInfo image = Commit(first_, "job:1");
  EXPECT_FALSE(Has(image));
  EXPECT_FALSE(*store_->HasNotes(kWorkingSetNote));
  for (const std::string& bytes : {std::string("one"), std::string(), MakePages(300, 5)}) {
    Put(image, bytes);
    EXPECT_TRUE(*store_->GetNote(image.digest, kWorkingSetNote) == bytes);
    Reopen();
    EXPECT_TRUE(*store_->GetNote(image.digest, kWorkingSetNote) == bytes);
  }
  EXPECT_EQ(Files("notes").size(), 1u);
  EXPECT_TRUE(Files("tmp").empty());
  EXPECT_TRUE(*store_->HasNotes(kWorkingSetNote));
  EXPECT_FALSE(*store_->HasNotes(kWorkingSetPagesNote));
  struct stat st;
  ASSERT_EQ(stat(PathOf(image).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  ExpectWhole();
  RK_ASSERT_OK(store_->RemoveNote(image.digest, kWorkingSetNote));
  EXPECT_FALSE(Has(image));
  EXPECT_TRUE(absl::IsNotFound(store_->RemoveNote(image.digest, kWorkingSetNote)));
  first_.ExpectIn(*store_, "job:1");
}

TEST_F(StoreNotesTest, WhatCantBeKeptIsRefused) {
  const ImageInfo image = Commit(first_, "job:1");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutNote(image, "else", "x")));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store_->PutNote(image, kWorkingSetNote, std::string(kMaxNoteBytes + 1, 'x'))));
  for (const char* digest : {"", "job:1", "sha256:12", "sha256:../../../../etc/passwd"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_->GetNote(digest, kWorkingSetNote).status())) << digest;
    EXPECT_TRUE(absl::IsInvalidArgument(store_->RemoveNote(digest, kWorkingSetNote))) << digest;
  }
  Put(image, std::string(kMaxNoteBytes, 'x'));
  RK_ASSERT_OK(store_->Remove("job:1"));
  EXPECT_TRUE(absl::IsNotFound(store_->PutNote(image, kWorkingSetNote, "x")));
  EXPECT_TRUE(Files("notes").empty());
}

TEST_F(StoreNotesTest, AReadOnlyStoreGivesThemAndTakesNone) {
  const ImageInfo image = Commit(first_, "job:1");
  Put(image, "note");
  options_.read_only = true;
  Reopen();
  EXPECT_EQ(*store_->GetNote(image.digest, kWorkingSetNote), "note");
  absl::Status status = store_->PutNote(image, kWorkingSetNote, "x");
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "was opened read-only")) << status;
  EXPECT_TRUE(absl::IsPermissionDenied(store_->RemoveNote(image.digest, kWorkingSetNote)));
  ExpectWhole();
}

TEST_F(StoreNotesTest, GoWithTheLastImageOfTheirDigest) {
  const ImageInfo one = Commit(first_, "job:1"), same = Commit(first_, "job:2"),
                  other = Commit(second_, "job:3");
  ASSERT_EQ(one.digest, same.digest);
  Put(one, "of first");
  Put(other, "of second");
  RK_ASSERT_OK(store_->Remove("job:1"));
  EXPECT_TRUE(Has(same));
  RK_ASSERT_OK(store_->RemoveExactly(same));
  EXPECT_FALSE(Has(same));
  EXPECT_TRUE(Has(other));
  // Replaced by itself it is the same image.
  Commit(second_, "job:3");
  EXPECT_TRUE(Has(other));
  Commit(first_, "job:3");
  EXPECT_FALSE(Has(other));
  EXPECT_TRUE(Files("notes").empty());
}

TEST_F(StoreNotesTest, GcTakesWhatWasLeftBehind) {
  const ImageInfo kept = Commit(first_, "kept"), gone = Commit(second_, "gone");
  Put(kept, "kept");
  Put(gone, "gone");
  auto orphan = ReadFile(PathOf(gone));
  RK_ASSERT_OK(orphan);
  RK_ASSERT_OK(store_->Remove("gone"));
  RK_ASSERT_OK(WriteFileAtomically(PathOf(gone), *orphan));
  RK_ASSERT_OK(WriteFileAtomically(options_.path + "/tmp/probe.1badc0de", "x"));
  auto report = store_->Fsck({});
  RK_ASSERT_OK(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_TRUE(absl::StrContains(report->problems[0], "belongs to no image")) << report->problems[0];
  GcOptions dry;
  dry.dry_run = true;
  RK_ASSERT_OK(store_->Gc(dry));
  EXPECT_EQ(Files("notes").size(), 2u);
  auto gc = store_->Gc({});
  RK_ASSERT_OK(gc);
  EXPECT_EQ(gc->leftovers_removed, 2u);
  EXPECT_EQ(Files("notes").size(), 1u);
  EXPECT_TRUE(Files("tmp").empty());
  EXPECT_TRUE(Has(kept));
  ExpectWhole();
}

TEST_F(StoreNotesTest, AnyDamageIsNoticedAndHarmsNoImage) {
  const ImageInfo image = Commit(first_, "job:1"), other = Commit(second_, "job:2");
  Put(image, "what was learned");
  const std::string whole = ReadFile(PathOf(image)).value();
  std::vector<std::string> damaged = {"", whole + "x", std::string(whole.size(), '\0')};
  for (size_t i = 0; i < whole.size(); ++i) {
    damaged.push_back(whole);
    damaged.back()[i] ^= 0x10;
    damaged.push_back(whole.substr(0, i));
  }
  // Another image's.
  Put(other, "what was learned");
  damaged.push_back(ReadFile(PathOf(other)).value());
  for (const std::string& bytes : damaged) {
    RK_ASSERT_OK(WriteFileAtomically(PathOf(image), bytes));
    absl::Status status = store_->GetNote(image.digest, kWorkingSetNote).status();
    // A version that this program does not know is not read, and is left to the one that does.
    if (absl::IsFailedPrecondition(status)) continue;
    ASSERT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), PathOf(image))) << status;
  }
  auto report = store_->Fsck({});
  RK_ASSERT_OK(report);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_TRUE(absl::StrContains(report->problems[0], PathOf(image))) << report->problems[0];
  EXPECT_TRUE(report->lost_images.empty());
  first_.ExpectIn(*store_, "job:1");
  // A new one takes its place, or a repair drops it.
  Put(image, "learned again");
  ExpectWhole();
  RK_ASSERT_OK(WriteFileAtomically(PathOf(image), "x"));
  RK_ASSERT_OK(Repair());
  EXPECT_FALSE(Has(image));
  EXPECT_TRUE(Has(other));
  ExpectWhole();
}

// Notes of pages: larger, put from several places, read piece by piece.
class StorePagesNotesTest : public StoreNotesTest {
 protected:
  static constexpr size_t kPart = size_t{9} << 20;

  void SetUp() override {
    StoreNotesTest::SetUp();
    image_ = Commit(first_, "job:1");
    parts_ = {"head", std::string(kPart, 'a'), "", std::string(kPart, 'b')};
    whole_ = absl::StrCat(parts_[0], parts_[1], parts_[3]);
  }
  absl::Status PutParts() {
    const std::vector<absl::string_view> views(parts_.begin(), parts_.end());
    return store_->PutNote(image_, kWorkingSetPagesNote, views);
  }
  std::string Path() { return absl::StrCat(PathOf(image_), "-pages"); }
  std::vector<std::string> Problems(bool read_data) {
    FsckOptions options;
    options.read_data = read_data;
    auto report = store_->Fsck(options);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? report->problems : std::vector<std::string>();
  }

  ImageInfo image_;
  std::vector<std::string> parts_;
  std::string whole_;
};

TEST_F(StorePagesNotesTest, AreReadPieceByPiece) {
  EXPECT_TRUE(absl::IsNotFound(store_->OpenNote(image_.digest, kWorkingSetPagesNote).status()));
  const uint64_t before = store_->Stats()->metadata_bytes;
  RK_ASSERT_OK(PutParts());
  EXPECT_GE(store_->Stats()->metadata_bytes, before + whole_.size());
  EXPECT_TRUE(*store_->GetNote(image_.digest, kWorkingSetPagesNote) == whole_);
  auto note = store_->OpenNote(image_.digest, kWorkingSetPagesNote);
  RK_ASSERT_OK(note);
  ASSERT_EQ((*note)->bytes(), whole_.size());
  (*note)->WillNeed();
  std::string piece(100, '\0');
  const absl::Span<std::byte> out(reinterpret_cast<std::byte*>(piece.data()), piece.size());
  for (uint64_t at : {uint64_t{0}, uint64_t{4 + kPart - 50}, uint64_t{whole_.size() - 100}}) {
    RK_ASSERT_OK((*note)->ReadAt(at, out));
    EXPECT_EQ(piece, whole_.substr(at, 100));
  }
  EXPECT_TRUE(absl::IsDataLoss((*note)->ReadAt(whole_.size() - 99, out)));
  EXPECT_TRUE(absl::IsDataLoss((*note)->ReadAt(~uint64_t{0}, out)));
  ExpectWhole();
  RK_ASSERT_OK(store_->Remove("job:1"));
  EXPECT_TRUE(Files("notes").empty());
  EXPECT_LT(store_->Stats()->metadata_bytes, whole_.size());
}

TEST_F(StorePagesNotesTest, OnlyTheyMayBeSoLarge) {
  const std::vector<absl::string_view> views(parts_.begin(), parts_.end());
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutNote(image_, kWorkingSetNote, views)));
  // Not all of it is touched.
  const std::string much(kPart, 'x');
  const std::vector<absl::string_view> too_much(kMaxPagesNoteBytes / kPart + 1, much);
  EXPECT_TRUE(absl::IsInvalidArgument(store_->PutNote(image_, kWorkingSetPagesNote, too_much)));
  EXPECT_TRUE(Files("notes").empty());
}

TEST_F(StorePagesNotesTest, AreNotKeptBeyondTheStoresLimit) {
  LimitsChange change;
  change.store_max_bytes = store_->Stats()->pack_bytes + store_->Stats()->metadata_bytes + kPart;
  std::string warning;
  RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  absl::Status status = PutParts();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(Files("notes").empty());
  change.store_max_bytes = *change.store_max_bytes + 2 * kPart;
  RK_ASSERT_OK(store_->ChangeLimits(change, &warning));
  RK_ASSERT_OK(PutParts());
}

TEST_F(StorePagesNotesTest, DamageOfTheBeginningIsNoticedAtOnceAndOfTheRestByTheChecksum) {
  RK_ASSERT_OK(store_->PutNote(image_, kWorkingSetPagesNote, "few"));
  const std::string small = ReadFile(Path()).value();
  const size_t prefix = small.size() - 3;
  for (size_t i = 0; i < prefix; ++i) {
    std::string bad = small;
    bad[i] ^= 0x10;
    RK_ASSERT_OK(WriteFileAtomically(Path(), bad));
    absl::Status status = store_->OpenNote(image_.digest, kWorkingSetPagesNote).status();
    // A newer version; the checksum, which only reading all of it tells.
    if (absl::IsFailedPrecondition(status)) continue;
    if (status.ok()) status = store_->GetNote(image_.digest, kWorkingSetPagesNote).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << i << ": " << status;
  }
  RK_ASSERT_OK(PutParts());
  const std::string good = ReadFile(Path()).value();
  for (const std::string& bad : {good + "x", good.substr(0, good.size() - 1), good.substr(0, prefix - 1)}) {
    RK_ASSERT_OK(WriteFileAtomically(Path(), bad));
    EXPECT_TRUE(absl::IsDataLoss(store_->OpenNote(image_.digest, kWorkingSetPagesNote).status()));
    EXPECT_EQ(Problems(false).size(), 1u);
  }
  std::string bad = good;
  bad[prefix + kPart] ^= 1;
  RK_ASSERT_OK(WriteFileAtomically(Path(), bad));
  RK_ASSERT_OK(store_->OpenNote(image_.digest, kWorkingSetPagesNote).status());
  EXPECT_TRUE(Problems(false).empty());
  ASSERT_EQ(Problems(true).size(), 1u);
  FsckOptions repair;
  repair.read_data = repair.repair = true;
  RK_ASSERT_OK(store_->Fsck(repair));
  EXPECT_TRUE(Files("notes").empty());
  ExpectWhole();
}

TEST_F(StoreNotesTest, RepairDropsThoseOfLostImages) {
  SetLogLevel(LogLevel::kError);
  const ImageInfo lost = Commit(first_, "lost"), kept = Commit(second_, "kept");
  Put(lost, "lost");
  Put(kept, "kept");
  store_.reset();
  const std::string pages = first_.objects["m"][0].substr(0, 64);
  for (const std::string& name : Files("packs")) {
    const std::string path = absl::StrCat(options_.path, "/packs/", name);
    std::string bytes = ReadFile(path).value();
    const size_t at = bytes.find(pages);
    if (at == std::string::npos) continue;
    bytes[at] ^= 1;
    RK_ASSERT_OK(WriteFileAtomically(path, bytes));
  }
  Reopen();
  RK_ASSERT_OK(Repair());
  EXPECT_TRUE(absl::IsNotFound(store_->Find("lost").status()));
  EXPECT_FALSE(Has(lost));
  EXPECT_TRUE(Has(kept));
  ExpectWhole();
  SetLogLevel(LogLevel::kWarning);
}

TEST_F(StoreNotesTest, AStoreMadeBeforeThereWereNotesTakesThem) {
  const ImageInfo image = Commit(first_, "job:1");
  ASSERT_EQ(rmdir((options_.path + "/notes").c_str()), 0);
  Reopen();
  EXPECT_FALSE(Has(image));
  ExpectWhole();
  RK_ASSERT_OK(store_->Gc({}));
  Put(image, "note");
  EXPECT_TRUE(Has(image));
}

TEST_F(StoreNotesTest, TwoProcessesKeepOneEachWhole) {
  const ImageInfo image = Commit(first_, "job:1");
  store_.reset();
  auto writer = [&](char letter) {
    return StartChild([&, letter]() -> std::string {
      auto store = Store::Open(options_);
      if (!store.ok()) return store.status().ToString();
      for (size_t i = 1; i < 40; ++i) {
        absl::Status status = (*store)->PutNote(image, kWorkingSetNote, std::string(i * 100, letter));
        if (!status.ok()) return status.ToString();
        auto note = (*store)->GetNote(image.digest, kWorkingSetNote);
        if (!note.ok()) return note.status().ToString();
        if (note->find_first_not_of(note->front()) != std::string::npos) return "two notes in one";
        if (i % 10 == 0 && !(*store)->Gc({}).ok()) return "gc";
      }
      return "";
    });
  };
  const pid_t a = writer('a'), b = writer('b');
  EXPECT_EQ(WaitForChild(a), 0);
  EXPECT_EQ(WaitForChild(b), 0);
  Reopen();
  EXPECT_EQ(store_->GetNote(image.digest, kWorkingSetNote)->size(), 3900u);
  EXPECT_TRUE(Files("tmp").empty());
  ExpectWhole();
}

}  // namespace
}  // namespace rekindle::store
