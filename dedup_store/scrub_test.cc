#include "dedup_store/scrub.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "base/unique_fd.h"
#include "dedup_store/format.h"
#include "dedup_store/store.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

using Part = ScrubDamage::Part;

constexpr uint64_t kRandomPages = 1000, kTextPages = 300;

class ScrubTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    image_.objects[kObject][0] = MakePages(kRandomPages, 1) + MakePages(kTextPages, 2, Content::kText);
    image_.blobs["files"] = "a small one";
  }

  // job:1 in a pack of its own.
  void CommitImage() {
    RK_ASSERT_OK(image_.Commit(*store_, "job:1"));
    ASSERT_EQ(Packs().size(), 1u);
    pack_ = Packs().front();
  }
  std::vector<std::string> Packs() const {
    std::vector<std::string> packs;
    const std::vector<std::string> names = ListDirectory(options_.path + "/packs").value();
    for (const std::string& name : names) {
      packs.push_back(options_.path + "/packs/" + name);
    }
    return packs;
  }

  struct Layout {
    PackFooter footer;
    std::vector<FrameEntry> frames;
  };
  static Layout LayoutOf(const std::string& pack) {
    const std::string bytes = ReadFile(pack).value();
    Layout layout;
    memcpy(&layout.footer, bytes.data() + bytes.size() - sizeof layout.footer, sizeof layout.footer);
    layout.frames.resize(layout.footer.frames);
    memcpy(layout.frames.data(), bytes.data() + layout.footer.sections[kFrames].offset,
           layout.footer.sections[kFrames].bytes);
    return layout;
  }
  static void Flip(const std::string& path, uint64_t offset) {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  // In the middle of the first frame of raw pages, and of the first compressed one; where they begin.
  std::vector<uint64_t> DamageTwoFrames() const {
    std::vector<uint64_t> offsets;
    for (const bool raw : {true, false}) {
      for (const FrameEntry& frame : LayoutOf(pack_).frames) {
        if (IsRaw(frame.codec()) != raw) continue;
        Flip(pack_, frame.offset() + frame.stored_bytes / 2);
        offsets.push_back(frame.offset());
        break;
      }
    }
    return offsets;
  }

  std::unique_ptr<Scrub> Begin() {
    auto scrub = NewScrub(*store_);
    EXPECT_TRUE(scrub.ok()) << scrub.status();
    return scrub.ok() ? *std::move(scrub) : nullptr;
  }
  struct Pass {
    std::vector<ScrubDamage> found;
    std::vector<std::string> catalog_problems;
    int steps = 0;
  };
  static Pass Finish(Scrub& scrub) {
    Pass pass;
    for (bool ended = false; !ended;) {
      auto step = scrub.Next();
      EXPECT_TRUE(step.ok()) << step.status();
      if (!step.ok()) return pass;
      EXPECT_FALSE(step->busy);
      ++pass.steps;
      pass.found.insert(pass.found.end(), step->found.begin(), step->found.end());
      pass.catalog_problems.insert(pass.catalog_problems.end(), step->catalog_problems.begin(),
                                   step->catalog_problems.end());
      ended = step->pass_ended;
    }
    return pass;
  }
  Pass RunPass() { return Finish(*Begin()); }
  // Nothing is damaged meanwhile. On a thread of its own.
  void ScrubUntil(const std::atomic<bool>& stop, std::atomic<uint64_t>& steps) {
    auto scrub = Begin();
    while (!stop) {
      auto step = scrub->Next();
      EXPECT_TRUE(step.ok()) << step.status();
      EXPECT_TRUE(step.value_or(ScrubStep()).found.empty());
      ++steps;
    }
  }
  ScrubStatus Status() const {
    auto status = ReadScrubStatus(*store_);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(ScrubStatus());
  }

  TestImage image_;
  std::string pack_;
};

TEST_F(ScrubTest, AWholeStoreIsReadAndNothingIsFound) {
  CommitImage();
  EXPECT_EQ(Status().state.last_ended_unix_ns, 0);
  const Pass pass = RunPass();
  EXPECT_TRUE(pass.found.empty());
  EXPECT_TRUE(pass.catalog_problems.empty());
  EXPECT_GT(pass.steps, 4) << "a piece at a time";
  const ScrubStatus status = Status();
  EXPECT_GE(status.state.last_ended_unix_ns, status.state.last_began_unix_ns);
  EXPECT_GT(status.state.last_began_unix_ns, 0);
  EXPECT_GE(status.state.last_bytes, LayoutOf(pack_).footer.stored_bytes);
  EXPECT_EQ(status.state.pass_began_unix_ns, 0);
  EXPECT_TRUE(status.state.damage.empty());
  ExpectWhole();
}

TEST_F(ScrubTest, AnEmptyStore) {
  EXPECT_EQ(RunPass().steps, 1);
  EXPECT_GT(Status().state.last_ended_unix_ns, 0);
}

TEST_F(ScrubTest, EveryPackIsReadInOnePass) {
  constexpr size_t kPacks = 12;
  for (size_t i = 0; i < kPacks; ++i) {
    TestImage small;
    small.objects["o"][0] = MakePages(2, 100 + i);
    RK_ASSERT_OK(small.Commit(*store_, absl::StrCat("small:", i)));
  }
  for (const std::string& pack : Packs()) Flip(pack, LayoutOf(pack).frames[0].offset());
  auto scrub = Begin();
  EXPECT_EQ(Finish(*scrub).found.size(), kPacks);
  EXPECT_EQ(Status().damaged_images.size(), kPacks);
}

// In the same process no pack is left to the next gc because of the scrub.
TEST_F(ScrubTest, GcMissesNoPackBecauseOfIt) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> steps{0};
  std::thread scrubbing([&] { ScrubUntil(stop, steps); });
  TestImage other;
  other.objects["o"][0] = MakePages(1000, 3);
  for (int i = 0; i < 15; ++i) {
    EXPECT_TRUE(other.Commit(*store_, "other:1").ok());
    // Until it is at the pack again.
    for (const uint64_t seen = steps; steps < seen + 3;) std::this_thread::yield();
    EXPECT_TRUE(store_->Remove("other:1").ok());
    auto report = store_->Gc({});
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report.value_or(GcReport()).packs_removed, 1u);
  }
  stop = true;
  scrubbing.join();
}

TEST_F(ScrubTest, BesideWritersAndGc) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> steps{0};
  std::thread scrubbing([&] { ScrubUntil(stop, steps); });
  std::string parent;
  for (uint64_t i = 0; i < 12; ++i) {
    const std::string name = absl::StrCat("job:", i);
    image_.objects[kObject][0].replace(i * 7 * kPageSize, 50 * kPageSize, MakePages(50, 1000 + i));
    EXPECT_TRUE(image_.Commit(*store_, name, parent).ok());
    TestImage other;
    other.objects["o"][0] = MakePages(40, 2000 + i);
    EXPECT_TRUE(other.Commit(*store_, "other:1").ok());
    EXPECT_TRUE(parent.empty() || store_->Remove(parent).ok());
    EXPECT_TRUE(store_->Remove("other:1").ok());
    auto report = store_->Gc({});
    EXPECT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report.ok() && report->packs_removed >= 1) << "that of the other image";
    parent = name;
  }
  stop = true;
  scrubbing.join();
  image_.ExpectIn(*store_, parent);
  ExpectWhole();
}

TEST_F(ScrubTest, TheNextImageIsNotBuiltUponDamage) {
  CommitImage();
  const std::vector<uint64_t> offsets = DamageTwoFrames();
  auto scrub = Begin();
  const Pass pass = Finish(*scrub);
  ASSERT_EQ(pass.found.size(), 2u);
  std::set<uint64_t> found;
  for (const ScrubDamage& damage : pass.found) {
    EXPECT_EQ(damage.part, Part::kChunk);
    EXPECT_NE(damage.why, "");
    EXPECT_GT(damage.found_unix_ns, 0);
    EXPECT_TRUE(absl::EndsWith(pack_, PackFileName(damage.pack)));
    found.insert(damage.offset);
  }
  EXPECT_EQ(found, std::set<uint64_t>(offsets.begin(), offsets.end()));
  EXPECT_EQ(scrub->ImagesWith(pass.found).value(), std::vector<std::string>{"job:1"});

  auto info = image_.Commit(*store_, "job:2", "job:1");
  RK_ASSERT_OK(info);
  EXPECT_GT(info->stats.new_bytes, 0u);
  EXPECT_GT(info->stats.parent_bytes, info->stats.new_bytes) << "what is whole is not stored again";
  image_.ExpectIn(*store_, "job:2");
  EXPECT_EQ(Status().damaged_images, std::vector<std::string>{"job:1"});

  // Also in the eyes of another process.
  scrub.reset();
  Reopen();
  auto third = image_.Commit(*store_, "job:3", "job:1");
  RK_ASSERT_OK(third);
  image_.ExpectIn(*store_, "job:3");
  EXPECT_EQ(Status().damaged_images, std::vector<std::string>{"job:1"});
}

TEST_F(ScrubTest, DamageIsReportedOnceAndKnownUntilItIsGone) {
  CommitImage();
  DamageTwoFrames();
  EXPECT_EQ(RunPass().found.size(), 2u);
  Reopen();
  EXPECT_EQ(RunPass().found.size(), 0u);
  EXPECT_EQ(Status().state.damage.size(), 2u);
  RK_ASSERT_OK(Repair());  // drops the image
  EXPECT_TRUE(Status().state.damage.empty());
  EXPECT_TRUE(Status().damaged_images.empty());
  EXPECT_EQ(RunPass().found.size(), 0u);
  ExpectWhole();
}

TEST_F(ScrubTest, EachPartOfAPack) {
  CommitImage();
  const PackFooter footer = LayoutOf(pack_).footer;
  const uint64_t size = ReadFile(pack_).value().size();
  const struct {
    Part part;
    uint64_t offset;
    bool lost;
  } kCases[] = {
      {Part::kPack, 20, true},
      {Part::kPack, size - 10, true},
      {Part::kPack, footer.sections[kFrames].offset + 50, true},
      {Part::kManifest, footer.sections[kManifest].offset + 10, true},
      {Part::kRecord, footer.sections[kImageRecord].offset + 10, false},
  };
  for (const auto& damaged : kCases) {
    SCOPED_TRACE(damaged.offset);
    Flip(pack_, damaged.offset);
    const Pass pass = RunPass();
    ASSERT_EQ(pass.found.size(), 1u);
    EXPECT_EQ(pass.found[0].part, damaged.part);
    EXPECT_EQ(Status().damaged_images.size(), damaged.lost ? 1u : 0u);
    Flip(pack_, damaged.offset);
    EXPECT_TRUE(RunPass().found.empty());
    EXPECT_TRUE(Status().state.damage.empty()) << "it is as it was";
  }
}

TEST_F(ScrubTest, APackThatIsMissingOrCut) {
  CommitImage();
  const std::string elsewhere = folder_->path() + "/pack";
  ASSERT_EQ(::rename(pack_.c_str(), elsewhere.c_str()), 0);
  Pass pass = RunPass();
  ASSERT_EQ(pass.found.size(), 1u);
  EXPECT_EQ(pass.found[0].part, Part::kPack);
  EXPECT_EQ(Status().damaged_images, std::vector<std::string>{"job:1"});
  ASSERT_EQ(::rename(elsewhere.c_str(), pack_.c_str()), 0);
  ASSERT_EQ(::truncate(pack_.c_str(), 100001), 0);
  EXPECT_EQ(RunPass().found.size(), 0u) << "known";
  EXPECT_EQ(Status().state.damage.size(), 1u);
}

// Somebody has the pack open since it was whole.
TEST_F(ScrubTest, NothingIsTakenFromAPackThatCannotBeOpenedAnyMore) {
  CommitImage();
  auto reader = store_->OpenImage("job:1");
  RK_ASSERT_OK(reader);
  Flip(pack_, LayoutOf(pack_).footer.sections[kFrames].offset + 50);
  EXPECT_EQ(RunPass().found.size(), 1u);
  RK_ASSERT_OK(image_.Commit(*store_, "job:2", "job:1"));
  reader->reset();
  Reopen();
  image_.ExpectIn(*store_, "job:2");
}

TEST_F(ScrubTest, GoesOnWhereItWas) {
  CommitImage();
  auto scrub = Begin();
  int steps = 0;
  for (; scrub->state().frame < 8; ++steps) RK_ASSERT_OK(scrub->Next());
  const ScrubState before = scrub->state();
  const uint64_t left = scrub->BytesLeft().value();
  EXPECT_LT(left, LayoutOf(pack_).footer.stored_bytes);
  scrub.reset();
  Reopen();
  EXPECT_EQ(Status().pass_bytes_left, left);
  Flip(pack_, LayoutOf(pack_).frames[0].offset() + 7);  // behind its back
  scrub = Begin();
  EXPECT_EQ(scrub->state().pack, before.pack);
  EXPECT_EQ(scrub->state().frame, before.frame);
  EXPECT_EQ(scrub->state().pass_began_unix_ns, before.pass_began_unix_ns);
  EXPECT_TRUE(Finish(*scrub).found.empty());
  EXPECT_EQ(scrub->state().last_began_unix_ns, before.pass_began_unix_ns);
  EXPECT_EQ(Finish(*scrub).found.size(), 1u) << "in the next pass";
}

// A process that is killed keeps no more than what was saved.
TEST_F(ScrubTest, WhatIsKeptIsAllOrNothing) {
  CommitImage();
  DamageTwoFrames();
  RunPass();
  const std::string path = options_.path + "/SCRUB";
  const std::string text = ReadFile(path).value();
  const ScrubState state = ScrubState::Decode(text).value();
  EXPECT_EQ(state.damage.size(), 2u);
  EXPECT_EQ(state.Encode(), text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    ASSERT_TRUE(absl::IsDataLoss(ScrubState::Decode(damaged).status())) << i;
  }
  for (const char* other : {"", "{}", "[1]", "{\"damage\": [1]}"}) {
    EXPECT_TRUE(absl::IsDataLoss(ScrubState::Decode(other).status())) << other;
  }
  RK_ASSERT_OK(WriteFileAtomically(path, text.substr(1)));
  EXPECT_EQ(RunPass().found.size(), 2u) << "found anew";
}

// After a roll-back: what the newer version knows of damage must not be forgotten.
TEST_F(ScrubTest, TheStateOfANewerVersionIsLeftAlone) {
  CommitImage();
  DamageTwoFrames();
  RunPass();
  const std::string path = options_.path + "/SCRUB";
  std::string text = ReadFile(path).value();
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  for (const std::string& newer :
       {text.replace(at, 12, "\"version\": 2"),
        std::string(R"({"magic": "rekindle-scrub", "version": 3, "other": []})")}) {
    RK_ASSERT_OK(WriteFileAtomically(path, newer));
    const absl::Status refused = NewScrub(*store_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), path)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "newer version")) << refused;
    EXPECT_TRUE(absl::IsFailedPrecondition(ReadScrubStatus(*store_).status()));
    EXPECT_EQ(ReadFile(path).value(), newer);
  }
}

TEST_F(ScrubTest, GcTakesThePackThatIsBeingRead) {
  CommitImage();
  TestImage other;
  other.objects["o"][0] = MakePages(500, 3);
  RK_ASSERT_OK(other.Commit(*store_, "other:1"));
  auto scrub = Begin();
  while (scrub->state().frame == 0) RK_ASSERT_OK(scrub->Next());
  // Of both images the one whose pack is being read.
  const bool of_job = absl::EndsWith(pack_, PackFileName(scrub->state().pack));
  RK_ASSERT_OK(store_->Remove(of_job ? "job:1" : "other:1"));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->packs_removed, 1u);
  EXPECT_TRUE(Finish(*scrub).found.empty());
  EXPECT_GT(scrub->state().last_ended_unix_ns, 0);
}

TEST_F(ScrubTest, WhatGcGaveBackIsPassedOver) {
  CommitImage();
  TestImage part;
  part.objects["p"][0] = image_.objects[kObject][0].substr(300 * kPageSize, 200 * kPageSize);
  RK_ASSERT_OK(part.Commit(*store_, "part:1"));
  auto scrub = Begin();
  while (scrub->state().frame == 0) RK_ASSERT_OK(scrub->Next());
  RK_ASSERT_OK(store_->Remove("job:1"));
  auto report = store_->Gc({});
  RK_ASSERT_OK(report);
  EXPECT_GT(report->packs_rewritten, 0u);
  EXPECT_TRUE(Finish(*scrub).found.empty());
  EXPECT_TRUE(Finish(*scrub).found.empty());
  EXPECT_LT(scrub->state().last_bytes, kRandomPages * kPageSize / 2);
  part.ExpectIn(*store_, "part:1");
}

TEST_F(ScrubTest, APackThatGcIsAtWorkOnIsReadLater) {
  CommitImage();
  auto scrub = Begin();
  UniqueFd gc(::open(pack_.c_str(), O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < 2; ++i) {  // when it is opened, and among its frames
    ASSERT_EQ(::flock(gc.get(), LOCK_EX | LOCK_NB), 0);
    const ScrubState before = scrub->state();
    auto step = scrub->Next();
    RK_ASSERT_OK(step);
    EXPECT_TRUE(step->busy);
    EXPECT_FALSE(step->pass_ended);
    EXPECT_EQ(scrub->state().frame, before.frame);
    ASSERT_EQ(::flock(gc.get(), LOCK_UN), 0);
    while (scrub->state().frame == 0) RK_ASSERT_OK(scrub->Next());
  }
  EXPECT_TRUE(Finish(*scrub).found.empty());
}

// The lock of a pack is held for a step, not for a pass.
TEST_F(ScrubTest, NothingIsLockedBetweenSteps) {
  CommitImage();
  auto scrub = Begin();
  UniqueFd gc(::open(pack_.c_str(), O_RDONLY | O_CLOEXEC));
  for (bool ended = false; !ended;) {
    auto step = scrub->Next();
    RK_ASSERT_OK(step);
    ended = step->pass_ended;
    ASSERT_EQ(::flock(gc.get(), LOCK_EX | LOCK_NB), 0);
    ASSERT_EQ(::flock(gc.get(), LOCK_UN), 0);
  }
}

TEST_F(ScrubTest, OneAtATime) {
  auto scrub = Begin();
  EXPECT_TRUE(absl::IsUnavailable(NewScrub(*store_).status()));
  scrub.reset();
  scrub = Begin();
  EXPECT_NE(scrub, nullptr);
}

TEST_F(ScrubTest, AReadOnlyStoreIsNotScrubbed) {
  CommitImage();
  options_.read_only = true;
  Reopen();
  EXPECT_TRUE(absl::IsPermissionDenied(NewScrub(*store_).status()));
  EXPECT_EQ(Status().state.last_ended_unix_ns, 0);
}

TEST_F(ScrubTest, ACopyOfTheCatalogIsMended) {
  CommitImage();
  const std::vector<std::string> names = ListDirectory(options_.path + "/catalog").value();
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".a")) Flip(options_.path + "/catalog/" + name, 60);
  }
  const Pass pass = RunPass();
  EXPECT_FALSE(pass.catalog_problems.empty());
  EXPECT_TRUE(pass.found.empty());
  EXPECT_TRUE(RunPass().catalog_problems.empty());
  ExpectWhole();
}

size_t PagesInCache(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const uint64_t bytes = FileSize(path);
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  EXPECT_NE(map, MAP_FAILED);
  absl::Cleanup unmap = [&] { ::munmap(map, bytes); };
  std::vector<unsigned char> there(bytes / kPageSize);
  EXPECT_EQ(::mincore(map, bytes, there.data()), 0);
  return static_cast<size_t>(
      std::count_if(there.begin(), there.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST_F(ScrubTest, ThePageCacheStaysAsItIs) {
  CommitImage();
  UniqueFd file(::open(pack_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (!file.valid()) GTEST_SKIP() << "no direct I/O here";
  ASSERT_EQ(::fsync(file.get()), 0);
  ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  if (PagesInCache(pack_) > 0) GTEST_SKIP() << "files are memory here";
  RunPass();
  EXPECT_EQ(PagesInCache(pack_), 0u) << "nothing is put in";
  ASSERT_TRUE(ReadFile(pack_).ok());
  const size_t cached = PagesInCache(pack_);
  EXPECT_GT(cached, 0u);
  RunPass();
  EXPECT_EQ(PagesInCache(pack_), cached) << "nothing is taken out";
}

TEST(ScrubPaceTest, TheRateFollowsFromWhatIsLeft) {
  constexpr uint64_t kTiB = uint64_t{1} << 40;
  const absl::Duration day = absl::Hours(24);
  EXPECT_EQ(ScrubRate(10 * kTiB, day), 10 * kTiB / (24 * 3600));
  EXPECT_EQ(ScrubRate(10, day), kMiB) << "the least";
  EXPECT_EQ(ScrubRate(0, day), kMiB);
  EXPECT_EQ(ScrubRate(1000 * kTiB, day), 128 * kMiB) << "the most";
  EXPECT_EQ(ScrubRate(10, absl::ZeroDuration()), 128 * kMiB);
  EXPECT_EQ(ScrubRate(10, -day), 128 * kMiB);
}

TEST(ScrubPaceTest, RestsMakeTheRate) {
  EXPECT_EQ(ScrubPause(1000, absl::ZeroDuration(), 1000), absl::Seconds(1));
  EXPECT_EQ(ScrubPause(1000, absl::Milliseconds(300), 1000), absl::Milliseconds(700));
  EXPECT_EQ(ScrubPause(1000, absl::Seconds(3), 1000), absl::ZeroDuration());
  EXPECT_EQ(ScrubPause(0, absl::ZeroDuration(), 1000), absl::ZeroDuration());
}

TEST(ScrubPaceTest, OnePassInEachPeriod) {
  const absl::Duration period = absl::Hours(10);
  const absl::Time now = absl::FromUnixSeconds(2000000000);
  ScrubState state;
  EXPECT_EQ(UntilScrub(state, period, now), absl::ZeroDuration()) << "there was none";
  EXPECT_EQ(ScrubTimeLeft(state, period, now), absl::Hours(8));
  state.pass_began_unix_ns = absl::ToUnixNanos(now - absl::Hours(7));
  EXPECT_EQ(UntilScrub(state, period, now), absl::ZeroDuration()) << "it is under way";
  EXPECT_EQ(ScrubTimeLeft(state, period, now), absl::Hours(1));
  EXPECT_EQ(ScrubTimeLeft(state, period, now + period), absl::ZeroDuration());
  EXPECT_EQ(ScrubTimeLeft(state, period, now - period), absl::Hours(8)) << "the clock was set back";
  state.last_began_unix_ns = std::exchange(state.pass_began_unix_ns, 0);
  state.last_ended_unix_ns = absl::ToUnixNanos(now);
  EXPECT_EQ(UntilScrub(state, period, now), absl::Hours(3));
  EXPECT_EQ(UntilScrub(state, period, now + period), absl::ZeroDuration());
  EXPECT_EQ(UntilScrub(state, period, now - 10 * period), period) << "the clock was set back";
}

}  // namespace
}  // namespace rekindle::store
