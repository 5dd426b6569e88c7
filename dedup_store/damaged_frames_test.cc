// Frames of stored images turn out to be damaged: new images neither refer to them nor fail.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "dedup_store/format.h"
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kRawPages = 200, kCompressedPages = 100;

class DamagedFramesTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    image_.objects[kObject][0] = MakePages(kRawPages, 1) + MakePages(kCompressedPages, 2, Content::kText);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    auto packs = ListDirectory(options_.path + "/packs");
    RK_ASSERT_OK(packs);
    ASSERT_EQ(packs->size(), 1u);
    pack_ = options_.path + "/packs/" + packs->front();
  }

  // One frame of raw pages and one of compressed ones.
  void Damage() {
    auto bytes = ReadFile(pack_);
    RK_ASSERT_OK(bytes);
    PackFooter footer;
    memcpy(&footer, bytes->data() + bytes->size() - sizeof footer, sizeof footer);
    std::vector<FrameEntry> frames(footer.frames);
    memcpy(frames.data(), bytes->data() + footer.sections[kFrames].offset, footer.sections[kFrames].bytes);
    int raw = 0, compressed = 0;
    const int fd = ::open(pack_.c_str(), O_RDWR | O_CLOEXEC);
    for (const FrameEntry& frame : frames) {
      int& count = IsRaw(frame.codec()) ? raw : compressed;
      if (count++ > 0) continue;
      const auto at = static_cast<off_t>(frame.offset() + frame.stored_bytes / 2);
      const char byte = static_cast<char>((*bytes)[static_cast<size_t>(at)] ^ 0x10);
      ASSERT_EQ(::pwrite(fd, &byte, 1, at), 1);
    }
    ::close(fd);
    ASSERT_TRUE(raw > 1 && compressed > 1) << raw << " raw frames, " << compressed << " compressed ones";
  }

  void NoticeByReading() const {
    auto reader = store_->OpenImage("job:1");
    RK_ASSERT_OK(reader);
    for (uint64_t from : {uint64_t{0}, kRawPages}) {
      const PageRun run{from * kPageSize, from == 0 ? kRawPages : kCompressedPages, false};
      auto sink = [](uint64_t, absl::Span<const std::byte>) { return absl::OkStatus(); };
      EXPECT_TRUE(absl::IsDataLoss((*reader)->ReadRanges(kObject, {&run, 1}, sink)));
    }
  }
  void NoticeByFsck() const {
    FsckOptions options;
    options.read_data = true;
    auto report = store_->Fsck(options);
    RK_ASSERT_OK(report);
    EXPECT_EQ(report->lost_images, std::vector<std::string>{"job:1"});
  }
  // As many packs as are merged into one index file.
  void CoverByIndex(int first) {
    for (int i = first; i < first + 10; ++i) {
      TestImage other;
      other.objects["o"][0] = MakePages(2, static_cast<uint64_t>(100 + i));
      RK_ASSERT_OK(other.Commit(*store_, absl::StrCat("other:", i)));
    }
    auto names = ListDirectory(options_.path + "/index");
    RK_ASSERT_OK(names);
    EXPECT_TRUE(std::any_of(names->begin(), names->end(),
                            [](const std::string& name) { return absl::EndsWith(name, ".idx"); }));
  }

  // The same content once more: an image that needs nothing of what is damaged.
  void ExpectNextImageIsWhole(const std::string& parent) {
    auto info = image_.Commit(*store_, "job:2", parent);
    RK_ASSERT_OK(info);
    EXPECT_GT(info->stats.new_bytes, 0u);
    EXPECT_GT(info->stats.parent_bytes + info->stats.shared_bytes, info->stats.new_bytes)
        << "what is not damaged is not stored again";
    image_.ExpectIn(*store_, "job:2");
    NoticeByFsck();  // and names no other image
    Reopen();
    image_.ExpectIn(*store_, "job:2");
    auto third = image_.Commit(*store_, "job:3", "job:2");
    RK_ASSERT_OK(third);
    EXPECT_EQ(third->stats.new_bytes, 0u);
  }

  TestImage image_;
  std::string pack_;
};

TEST_F(DamagedFramesTest, WhatAReaderFoundIsStoredAfresh) {
  Damage();
  NoticeByReading();
  ExpectNextImageIsWhole("job:1");
}

TEST_F(DamagedFramesTest, WhatFsckFoundIsStoredAfresh) {
  Damage();
  NoticeByFsck();
  ExpectNextImageIsWhole("job:1");
}

TEST_F(DamagedFramesTest, OtherProcessesLearnOfIt) {
  Damage();
  NoticeByReading();
  Reopen();
  ExpectNextImageIsWhole("job:1");
}

TEST_F(DamagedFramesTest, AnIndexThatHasThePagesStillIsNotBelieved) {
  CoverByIndex(0);
  Damage();
  NoticeByReading();
  Reopen();
  ExpectNextImageIsWhole("");
  CoverByIndex(20);
  TestImage part;
  part.objects["p"][0] = image_.objects[kObject][0].substr(0, 64 * kPageSize);
  RK_ASSERT_OK(part.Commit(*store_, "part:1"));
  part.ExpectIn(*store_, "part:1");
  NoticeByFsck();
}

// Compressed frames are read when an equal page is looked for.
TEST_F(DamagedFramesTest, WhatTheLookUpFindsIsStoredAfresh) {
  Damage();
  TestImage text;
  text.objects["t"][0] = image_.objects[kObject][0].substr(kRawPages * kPageSize);
  for (const char* name : {"text:1", "text:2"}) {
    RK_ASSERT_OK(text.Commit(*store_, name));
    text.ExpectIn(*store_, name);
    Reopen();
  }
  NoticeByFsck();
}

TEST_F(DamagedFramesTest, PagesWithoutTheirBytesAreNotTakenFromThere) {
  auto child = [&] {
    NewImageOptions options = Named("job:2");
    options.parent = "job:1";
    return store_->NewImage(options);
  };
  {
    auto writer = child();
    RK_ASSERT_OK(writer);
    ASSERT_TRUE((*writer)->ParentHas(kObject, 0, kRawPages));
    RK_ASSERT_OK((*writer)->AddParentPages(kObject, 0, kRawPages));
    Damage();
    NoticeByReading();
    // Found between the question and the commit.
    EXPECT_TRUE(absl::IsDataLoss((*writer)->Commit().status()));
  }
  auto writer = child();
  RK_ASSERT_OK(writer);
  EXPECT_FALSE((*writer)->ParentHas(kObject, 0, kRawPages));
  uint64_t had = 0;
  for (uint64_t page = 0; page < kRawPages; ++page) {
    had += (*writer)->ParentHas(kObject, page * kPageSize, 1) ? 1 : 0;
  }
  EXPECT_GT(had, kRawPages / 2) << "those of other frames";
  EXPECT_LT(had, kRawPages);
}

TEST_F(DamagedFramesTest, AReadOnlyStoreIsNotWritten) {
  Damage();
  auto before = ListDirectory(options_.path + "/index");
  RK_ASSERT_OK(before);
  const std::string table = options_.path + "/index/" + before->front();
  const std::string content = ReadFile(table).value();
  options_.read_only = true;
  Reopen();
  NoticeByReading();
  EXPECT_TRUE(ReadFile(table).value() == content);
}

}  // namespace
}  // namespace rekindle::store
