// Places of the disk that can't be read, as Linux tells of them.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "dedup_store/format.h"
#include "dedup_store/hooked_store_testing.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store.h"

namespace rekindle::store {
namespace {

constexpr uint32_t kFrame = 3;  // the one that is hit

class BadPlacesTest : public HookedStoreTest {
 protected:
  // That of one pack; what a reader past the page cache is told there, and what any other is.
  struct BadPlace {
    std::string path;
    uint64_t from = 0, end = 0;
    int uncached = 0, buffered = 0;
  };

  void SetUp() override {
    hook_ = [this](const HookedDisk::Operation& operation) { return Hook(operation); };
    HookedStoreTest::SetUp();
    image_.objects[kObject][0] = MakePages(1000, 1) + MakePages(300, 2, Content::kText);
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    for (uint64_t i = 0; i < 4; ++i) {
      TestImage other;
      other.objects["o"][0] = MakePages(5, 10 + i);
      RK_ASSERT_OK(other.Commit(*store_, absl::StrCat("other:", i)));
    }
    const std::string folder = options_.path + "/packs";
    const std::vector<std::string> names = ListDirectory(folder).value();
    for (const std::string& name : names) {
      if (FileSize(folder + "/" + name) > 1000 * kPageSize) pack_ = folder + "/" + name;
    }
    ASSERT_NE(pack_, "");
  }

  // The last page of a frame, which is not the pack's first.
  BadPlace InAFrame(int uncached, int buffered) const {
    const std::string bytes = ReadFile(pack_).value();
    PackFooter footer;
    memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
    FrameEntry frame;
    memcpy(&frame, bytes.data() + footer.sections[kFrames].offset + kFrame * sizeof frame, sizeof frame);
    const uint64_t end = frame.offset() + frame.stored_bytes;
    return {pack_, end - kPageSize, end, uncached, buffered};
  }

  struct Pass {
    std::vector<ScrubDamage> found;
    int errors = 0;
    bool ended = false;
  };
  static Pass RunPass(Scrub& scrub, int most_errors) {
    Pass pass;
    while (!pass.ended && pass.errors <= most_errors) {
      auto step = scrub.Next();
      pass.errors += step.ok() ? 0 : 1;
      if (!step.ok()) continue;
      pass.found.insert(pass.found.end(), step->found.begin(), step->found.end());
      pass.ended = step->pass_ended;
    }
    return pass;
  }

  absl::Status Hook(const HookedDisk::Operation& operation) const {
    if (!bad_ || operation.path != bad_->path) return absl::OkStatus();
    int error = 0;
    if (operation.call == HookedDisk::Call::kRead) error = bad_->buffered;
    if (operation.call == HookedDisk::Call::kReadUncached) error = bad_->uncached;
    const bool hit = operation.offset < bad_->end && operation.offset + operation.bytes > bad_->from;
    if (operation.bytes <= largest_ || error == 0 || !hit) return absl::OkStatus();
    if (times_ == 0) return absl::OkStatus();
    if (times_ > 0) --times_;
    return ReadError(error, operation.path, operation.offset, operation.bytes);
  }

  std::optional<BadPlace> bad_;
  uint64_t largest_ = 0;    // read that is never hit
  mutable int times_ = -1;  // that a read is hit; less: each
  TestImage image_;
  std::string pack_;
};

TEST_F(BadPlacesTest, TheScrubFindsThemByWhateverNameTheDiskGivesThem) {
  for (int error : {EIO, ENODATA, EILSEQ, EREMOTEIO, EUCLEAN, EBADMSG}) {
    SCOPED_TRACE(strerror(error));
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    bad_ = InAFrame(error, EIO);
    const Pass pass = RunPass(**scrub, 5);
    EXPECT_TRUE(pass.ended);
    EXPECT_EQ(pass.errors, 2) << "it is tried again first";
    ASSERT_EQ(pass.found.size(), 1u);
    EXPECT_EQ(pass.found[0].part, ScrubDamage::Part::kChunk);
    EXPECT_TRUE(absl::StrContains(pass.found[0].why, "reports")) << pass.found[0].why;
    EXPECT_EQ((*scrub)->ImagesWith(pass.found).value(), std::vector<std::string>{"job:1"});
    bad_.reset();
    EXPECT_TRUE(RunPass(**scrub, 0).ended);
    EXPECT_TRUE((*scrub)->state().damage.empty());
  }
}

TEST_F(BadPlacesTest, NewImagesAreNotBuiltUponWhatTheScrubFound) {
  bad_ = InAFrame(ENODATA, EIO);
  {
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    EXPECT_EQ(RunPass(**scrub, 5).found.size(), 1u);
  }
  RK_ASSERT_OK(image_.Commit(*store_, "job:2", "job:1"));
  image_.ExpectIn(*store_, "job:2");
}

TEST_F(BadPlacesTest, NewImagesAreNotBuiltUponWhatAReaderMet) {
  bad_ = InAFrame(ENODATA, EIO);
  {
    auto reader = store_->OpenImage("job:1");
    RK_ASSERT_OK(reader);
    std::string address;
    const std::vector<StoredRun> layout = (*reader)->Layout(kObject).value();
    for (const StoredRun& run : layout) {
      if (run.frame.frame == kFrame) address = absl::StrFormat("address %#x:", run.address);
    }
    ASSERT_NE(address, "");
    auto sink = [](uint64_t, absl::Span<const std::byte>) { return absl::OkStatus(); };
    const std::vector<PageRun> all = (*reader)->Runs(kObject).value();
    const absl::Status status = (*reader)->ReadRanges(kObject, all, sink);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), address)) << status << " should name " << address;
  }
  auto next = image_.Commit(*store_, "job:2", "job:1");
  RK_ASSERT_OK(next);
  EXPECT_GT(next->stats.parent_bytes, next->stats.new_bytes) << "what can be read is not stored again";
  image_.ExpectIn(*store_, "job:2");
}

TEST_F(BadPlacesTest, WhatTheDiskGivesAgainIsUsedAgain) {
  const BadPlace in_footer{pack_, FileSize(pack_) - 1, FileSize(pack_), EIO, 0};
  for (const BadPlace& place : {InAFrame(EIO, EIO), in_footer}) {
    SCOPED_TRACE(place.from);
    bad_ = place;
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    EXPECT_EQ(RunPass(**scrub, 5).found.size(), 1u);
    bad_.reset();
    auto built = image_.Commit(*store_, "job:2", "job:1");
    RK_ASSERT_OK(built);
    EXPECT_GT(built->stats.new_bytes, 0u);
    RK_ASSERT_OK(store_->Remove("job:2"));
    RK_ASSERT_OK(store_->Gc({}));
    // Whoever reads it: what was forgotten was written down.
    scrub->reset();
    Reopen();
    scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    EXPECT_TRUE(RunPass(**scrub, 0).ended);
    EXPECT_TRUE((*scrub)->state().damage.empty());
    for (int i = 0; i < 2; ++i) {
      built = image_.Commit(*store_, "job:2", "job:1", /*replace=*/true);
      RK_ASSERT_OK(built);
      EXPECT_EQ(built->stats.new_bytes, 0u);
      image_.ExpectIn(*store_, "job:2");
      scrub->reset();
      Reopen();
    }
    RK_ASSERT_OK(store_->Remove("job:2"));
    ExpectWhole();
  }
}

// `ls` and whoever scrapes ask for it again and again.
TEST_F(BadPlacesTest, WhoHasDamageIsLookedForOnce) {
  {
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    bad_ = InAFrame(EIO, EIO);
    ASSERT_EQ(RunPass(**scrub, 5).found.size(), 1u);
  }
  bad_.reset();
  std::atomic<int> opened = 0;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call == HookedDisk::Call::kOpen && absl::EndsWith(operation.path, ".pack")) ++opened;
    return absl::OkStatus();
  };
  const std::vector<std::string> damaged{"job:1"};
  EXPECT_EQ(ReadDamagedImages(*store_).value(), damaged);
  EXPECT_GT(opened, 0);
  opened = 0;
  EXPECT_EQ(ReadDamagedImages(*store_).value(), damaged);
  EXPECT_EQ(ReadScrubStatus(*store_)->damaged_images, damaged);
  EXPECT_EQ(opened, 0);
  RK_ASSERT_OK(image_.Commit(*store_, "job:2"));
  RK_ASSERT_OK(store_->Remove("other:1"));
  opened = 0;
  EXPECT_EQ(ReadDamagedImages(*store_).value(), damaged);
  EXPECT_EQ(opened, 1) << "that of the new image";
  RK_ASSERT_OK(store_->Remove("job:1"));
  EXPECT_EQ(ReadDamagedImages(*store_).value(), std::vector<std::string>());
}

// As when the path to it is switched, a soft mount's server is away, a volume is detached: all is refused,
// also what is written.
TEST_F(BadPlacesTest, ADiskThatIsAwayIsNotDamaged) {
  bool away = true;
  hook_ = [&](const HookedDisk::Operation& operation) {
    const bool of_pack = absl::StrContains(operation.path, "/packs/");
    if (away && of_pack && operation.call == HookedDisk::Call::kReadUncached)
      return ReadError(EIO, operation.path, operation.offset, operation.bytes);
    const bool probe =
        absl::StrContains(operation.path, "/tmp/") && operation.call == HookedDisk::Call::kSync;
    return away && probe ? absl::InternalError("syncing: Input/output error") : absl::OkStatus();
  };
  auto scrub = NewScrub(*store_);
  RK_ASSERT_OK(scrub);
  const Pass pass = RunPass(**scrub, 20);
  EXPECT_FALSE(pass.ended);
  EXPECT_TRUE(pass.found.empty());
  away = false;
  const Pass rest = RunPass(**scrub, 0);
  EXPECT_TRUE(rest.ended);
  EXPECT_TRUE(rest.found.empty());
  auto built = image_.Commit(*store_, "job:2", "job:1");
  RK_ASSERT_OK(built);
  EXPECT_EQ(built->stats.new_bytes, 0u);
}

// As when it came for a moment only.
TEST_F(BadPlacesTest, WhatCanBeReadInSmallerPiecesIsNotLost) {
  bad_ = InAFrame(0, EIO);
  largest_ = 64 * kPageSize;
  image_.ExpectIn(*store_, "job:1");
}

// One that tells nothing of the data.
TEST_F(BadPlacesTest, AnErrorAtOnePlaceDoesNotKeepTheScrubFromTheRest) {
  const BadPlace in_header{pack_, 0, 1, ETIMEDOUT, 0};
  for (const BadPlace& place : {InAFrame(ETIMEDOUT, 0), in_header}) {
    SCOPED_TRACE(place.from);
    bad_ = place;
    auto scrub = NewScrub(*store_);
    RK_ASSERT_OK(scrub);
    const Pass pass = RunPass(**scrub, 5);
    EXPECT_TRUE(pass.ended);
    EXPECT_GT(pass.errors, 0) << "it is tried again first";
    ASSERT_EQ(pass.found.size(), 1u);
    EXPECT_TRUE(absl::StrContains(pass.found[0].why, strerror(ETIMEDOUT))) << pass.found[0].why;
    bad_.reset();
    EXPECT_TRUE(RunPass(**scrub, 0).ended);
    EXPECT_TRUE((*scrub)->state().damage.empty()) << "a later pass can read it";
  }
}

TEST_F(BadPlacesTest, AMachineWithoutMemoryIsNoBadPlace) {
  bad_ = InAFrame(ENOMEM, 0);
  auto scrub = NewScrub(*store_);
  RK_ASSERT_OK(scrub);
  const Pass pass = RunPass(**scrub, 20);
  EXPECT_FALSE(pass.ended);
  EXPECT_TRUE(pass.found.empty());
  bad_.reset();
  EXPECT_TRUE(RunPass(**scrub, 0).ended);
}

// What a file server does not give now it may give in a second.
TEST_F(BadPlacesTest, ARepairReadsAgainBeforeItDropsAnImage) {
  bad_ = BadPlace{pack_, 0, 1, EIO, EIO};
  times_ = 1;
  FsckOptions options;
  options.repair = true;
  auto report = store_->Fsck(options);
  RK_ASSERT_OK(report);
  EXPECT_EQ(times_, 0) << "it was hit";
  EXPECT_TRUE(report->lost_images.empty());
  EXPECT_TRUE(report->problems.empty());
  bad_.reset();
  RK_ASSERT_OK(store_->Gc({}));
  image_.ExpectIn(*store_, "job:1");
}

TEST_F(BadPlacesTest, ACancelledRepairDropsNothing) {
  bad_ = InAFrame(EIO, EIO);
  times_ = -1;
  std::atomic<bool> cancel{false};
  hook_ = [&](const HookedDisk::Operation& operation) {
    const absl::Status status = Hook(operation);
    if (!status.ok()) cancel = true;
    return status;
  };
  FsckOptions options;
  options.read_data = true;
  options.repair = true;
  options.cancel = &cancel;
  const absl::Status cancelled = store_->Fsck(options).status();
  EXPECT_TRUE(absl::IsCancelled(cancelled)) << cancelled;
  EXPECT_TRUE(absl::StrContains(cancelled.message(), "nothing was repaired")) << cancelled;
  bad_.reset();
  ExpectWhole();
  image_.ExpectIn(*store_, "job:1");
}

TEST_F(BadPlacesTest, OnlyWhoHasAllReadDropsWhatTheDiskRefuses) {
  bad_ = BadPlace{pack_, 0, 1, EIO, EIO};
  FsckOptions options;
  options.repair = true;
  const absl::Status refused = store_->Fsck(options).status();
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(absl::StrContains(refused.message(), "nothing was repaired")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "fsck --read --repair")) << refused;
  options.read_data = true;
  auto report = store_->Fsck(options);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->lost_images, std::vector<std::string>{"job:1"});
  bad_.reset();
  ExpectWhole();
}

// As when a soft mount's server comes back, or the path to the disk, only while the check goes on.
TEST_F(BadPlacesTest, WhatAnOutageRefusedIsNotDropped) {
  const BadPlace in_header{pack_, 0, 1, EIO, EIO};
  for (const BadPlace& place : {in_header, InAFrame(EIO, EIO)}) {
    SCOPED_TRACE(place.from);
    bad_ = place;
    times_ = -1;
    FsckOptions options;
    options.read_data = true;
    options.repair = true;
    std::atomic<bool> was_hit = false;  // it is read in parallel
    hook_ = [&](const HookedDisk::Operation& operation) {
      // The first thing that is written is the repair's.
      if (absl::StrContains(operation.path, options_.path + "/tmp/")) bad_.reset();
      const absl::Status status = Hook(operation);
      if (!status.ok()) was_hit = true;
      return status;
    };
    const absl::Status refused = store_->Fsck(options).status();
    EXPECT_TRUE(was_hit);
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "nothing was repaired")) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), pack_)) << refused;
    bad_.reset();
    image_.ExpectIn(*store_, "job:1");
    ExpectWhole();
  }
}

TEST_F(BadPlacesTest, PacksThatAreNotMountedAreNotLost) {
  const std::string packs = options_.path + "/packs", elsewhere = folder_->path() + "/elsewhere";
  ASSERT_EQ(::rename(packs.c_str(), elsewhere.c_str()), 0);
  RK_ASSERT_OK(MakeDirectories(packs, 0700));
  const absl::Status refused = Repair();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "mounted")) << refused;
  ASSERT_EQ(::rename(elsewhere.c_str(), packs.c_str()), 0);
  ExpectWhole();
  image_.ExpectIn(*store_, "job:1");
}

}  // namespace
}  // namespace rekindle::store
