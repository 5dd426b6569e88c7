// Reading whole frames, and where the pages of an object lie.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/format.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

// Words of which some bytes are equal and the others random: to be compressed by planes.
std::string Words(size_t pages, uint64_t seed) {
  std::string bytes = MakePages(pages, seed);
  for (size_t i = 0; i < bytes.size(); i += 8) {
    bytes[i + 5] = bytes[i + 6] = 0x55;
    bytes[i + 7] = 0x3f;
  }
  return bytes;
}

class ImageFramesTest : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    // Pages of another image, which the image shares from the middle of their frames.
    other_.objects["m"][0] = MakePages(150, 1) + MakePages(90, 2, Content::kText);
    RK_ASSERT_OK(other_.Commit(*store_, "other"));
    const std::string& shared = other_.objects["m"][0];
    image_.objects["mixed"][0x10000] =
        MakePages(70, 3) + MakePages(100, 4, Content::kText) + MakePages(3, 0, Content::kZero) + Words(40, 5);
    image_.objects["mixed"][0x7000000] =
        shared.substr(17 * kPageSize, 61 * kPageSize) + MakePages(1, 6) + shared.substr(160 * kPageSize);
    image_.objects["mixed"][0x9000000] = MakePages(1, 7);
    image_.objects["twice"][0] = image_.objects["mixed"][0x10000].substr(0, 5 * kPageSize);
    RK_ASSERT_OK(image_.Commit(*store_, "image"));
    auto reader = store_->OpenImage("image");
    RK_ASSERT_OK(reader);
    reader_ = *std::move(reader);
  }

  std::vector<StoredRun> Layout(const std::string& object) {
    auto layout = reader_->Layout(object);
    EXPECT_TRUE(layout.ok()) << layout.status();
    return layout.ok() ? *layout : std::vector<StoredRun>();
  }

  std::vector<FrameId> Frames() {
    std::set<FrameId> frames;
    for (const auto& [name, ranges] : image_.objects) {
      for (const StoredRun& run : Layout(name)) {
        if (!run.zero) frames.insert(run.frame);
      }
    }
    return {frames.begin(), frames.end()};
  }

  using Contents = std::map<FrameId, std::string>;

  // What the objects hold, put together from frames.
  void ExpectObjects(const Contents& frames) {
    for (const auto& [name, ranges] : image_.objects) {
      std::map<uint64_t, std::string> got;
      uint64_t end = 0;
      for (const StoredRun& run : Layout(name)) {
        EXPECT_GE(run.address, end);
        if (got.empty() || run.address != end) got[run.address];
        std::string& bytes = got.rbegin()->second;
        if (run.zero) {
          bytes.append(size_t{run.pages} * kPageSize, '\0');
        } else {
          EXPECT_LE(run.page_in_frame + run.pages, reader_->FramePages(run.frame));
          bytes += frames.at(run.frame).substr(run.page_in_frame * kPageSize, run.pages * kPageSize);
        }
        end = run.address + uint64_t{run.pages} * kPageSize;
      }
      EXPECT_TRUE(got == ranges) << name;
    }
  }

  // Loads all of `frames` at once.
  absl::Status LoadAtOnce(const std::vector<FrameId>& frames, std::vector<std::string>& bytes) {
    bytes.resize(frames.size());
    std::vector<std::atomic<int>> loaded(frames.size());
    absl::Status status = reader_->LoadFrames(
        frames,
        [&](size_t i) -> absl::Span<std::byte> {
          bytes[i].assign(reader_->FramePages(frames[i]) * kPageSize, 'x');
          return {reinterpret_cast<std::byte*>(bytes[i].data()), bytes[i].size()};
        },
        [&](size_t i) {
          ++loaded[i];
          return absl::OkStatus();
        });
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_EQ(loaded[i] == 1, status.ok() || loaded[i] > 0) << loaded[i];
      if (loaded[i] == 0) bytes[i].clear();
    }
    return status;
  }

  absl::StatusOr<std::string> Load(FrameId frame) {
    std::string bytes(reader_->FramePages(frame) * kPageSize, 'x');
    absl::Status status =
        reader_->LoadFrame(frame, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()});
    if (!status.ok()) return status;
    return bytes;
  }

  std::string PackPath(uint64_t pack) { return absl::StrCat(options_.path, "/packs/", PackFileName(pack)); }

  FrameEntry EntryOf(FrameId id) {
    auto bytes = ReadFile(PackPath(id.pack));
    EXPECT_TRUE(bytes.ok());
    PackFooter footer;
    memcpy(&footer, bytes->data() + bytes->size() - sizeof footer, sizeof footer);
    FrameEntry entry;
    memcpy(&entry, bytes->data() + footer.sections[kFrames].offset + id.frame * sizeof entry, sizeof entry);
    return entry;
  }

  void FlipBit(const std::string& path, uint64_t offset) {
    int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= 0x10;
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    close(fd);
  }

  TestImage other_, image_;
  std::unique_ptr<ImageReader> reader_;
};

TEST_F(ImageFramesTest, FramesOfEveryCodecMakeUpTheObjects) {
  Contents alone, at_once;
  std::set<Codec> codecs;
  const std::vector<FrameId> frames = Frames();
  for (FrameId frame : frames) {
    auto bytes = Load(frame);
    RK_ASSERT_OK(bytes);
    alone[frame] = *bytes;
    codecs.insert(EntryOf(frame).codec());
  }
  EXPECT_EQ(codecs, (std::set<Codec>{Codec::kRaw, Codec::kZstd, Codec::kZstdOfPlanes}));
  ExpectObjects(alone);
  std::vector<std::string> bytes;
  RK_ASSERT_OK(LoadAtOnce(frames, bytes));
  for (size_t i = 0; i < frames.size(); ++i) at_once[frames[i]] = bytes[i];
  EXPECT_TRUE(at_once == alone);
}

TEST_F(ImageFramesTest, RunsEndWhereFramesDo) {
  std::set<uint64_t> packs;
  for (const StoredRun& run : Layout("mixed")) {
    if (run.zero) {
      EXPECT_EQ(run.address, 0x10000u + 170 * kPageSize);
      EXPECT_EQ(run.pages, 3u);
      continue;
    }
    packs.insert(run.frame.pack);
    EXPECT_LE(run.pages, kMaxPagesOfFrame);
  }
  EXPECT_EQ(packs.size(), 2u);
  // Equal pages lie in one place, whichever object names them.
  EXPECT_EQ(Layout("twice").front().frame, Layout("mixed").front().frame);
  EXPECT_TRUE(absl::IsNotFound(reader_->Layout("else").status()));
}

TEST_F(ImageFramesTest, ManyThreadsLoadAtOnce) {
  const std::vector<FrameId> frames = Frames();
  Contents expected;
  for (FrameId frame : frames) expected[frame] = *Load(frame);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 40; ++i) {
        const FrameId frame = frames[(i * 7 + t) % frames.size()];
        auto bytes = Load(frame);
        if (!bytes.ok() || *bytes != expected[frame]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ImageFramesTest, WhatIsLeftOutIsNotLoaded) {
  const std::vector<FrameId> frames = Frames();
  std::string bytes(reader_->FramePages(frames[1]) * kPageSize, 'x');
  std::atomic<int> loaded{0};
  RK_ASSERT_OK(reader_->LoadFrames(
      frames,
      [&](size_t i) -> absl::Span<std::byte> {
        if (i != 1) return {};
        return {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
      },
      [&](size_t i) {
        EXPECT_EQ(i, 1u);
        ++loaded;
        return absl::OkStatus();
      }));
  EXPECT_EQ(loaded, 1);
  EXPECT_EQ(bytes, *Load(frames[1]));
}

TEST_F(ImageFramesTest, RefusesWhatIsNotTheImages) {
  const FrameId known = Frames().front();
  EXPECT_EQ(reader_->FramePages({known.pack + 1, 0}), 0u);
  EXPECT_EQ(reader_->FramePages({known.pack, 100000}), 0u);
  std::vector<std::byte> bytes(kMaxPagesOfFrame * kPageSize + kPageSize);
  EXPECT_TRUE(absl::IsOutOfRange(reader_->LoadFrame({known.pack + 1, 0}, absl::MakeSpan(bytes))));
  EXPECT_TRUE(absl::IsInvalidArgument(reader_->LoadFrame(known, absl::MakeSpan(bytes))));
  const FrameId strange[] = {known, {known.pack, 100000}};
  EXPECT_TRUE(absl::IsOutOfRange(reader_->LoadFrames(
      strange, [](size_t) -> absl::Span<std::byte> { return {}; }, [](size_t) { return absl::OkStatus(); })));
}

TEST_F(ImageFramesTest, AnErrorOfTheCallerEndsTheLoading) {
  const std::vector<FrameId> frames = Frames();
  std::vector<std::string> bytes(frames.size());
  absl::Status status = reader_->LoadFrames(
      frames,
      [&](size_t i) -> absl::Span<std::byte> {
        bytes[i].resize(reader_->FramePages(frames[i]) * kPageSize);
        return {reinterpret_cast<std::byte*>(bytes[i].data()), bytes[i].size()};
      },
      [](size_t) { return absl::AbortedError("the job has ended"); });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST_F(ImageFramesTest, DamageNamesTheFrameAndSparesItsNeighbours) {
  const std::vector<FrameId> frames = Frames();
  for (FrameId victim : frames) {
    const FrameEntry entry = EntryOf(victim);
    const uint64_t at = entry.offset() + entry.stored_bytes / 2;
    FlipBit(PackPath(victim.pack), at);
    std::vector<std::string> bytes;
    for (const absl::Status& status : {Load(victim).status(), LoadAtOnce(frames, bytes)}) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      for (const std::string& named : {std::string("image image:latest,"),
                                       absl::StrCat("chunk ", victim.frame, ":"), PackPath(victim.pack)}) {
        EXPECT_TRUE(absl::StrContains(status.message(), named)) << status << " lacks " << named;
      }
    }
    FlipBit(PackPath(victim.pack), at);
    // Whatever was handed on before is right.
    for (size_t i = 0; i < frames.size(); ++i) {
      EXPECT_TRUE(bytes[i].empty() || bytes[i] == *Load(frames[i]));
    }
    if (HasFailure()) return;
  }
}

// A pack that was cut short: what lies before the cut comes out, what lies behind it is named.
TEST_F(ImageFramesTest, AReadThatFailsNamesTheFrameThatCantBeRead) {
  std::vector<FrameId> frames;
  const std::vector<FrameId> all = Frames();
  for (FrameId frame : all) {
    if (frame.pack == all.back().pack) frames.push_back(frame);
  }
  ASSERT_GT(frames.size(), 2u);
  const FrameId last = frames.back();
  ASSERT_EQ(truncate(PackPath(last.pack).c_str(), static_cast<off_t>(EntryOf(last).offset() + 1)), 0);
  std::vector<std::string> bytes;
  absl::Status status = LoadAtOnce(frames, bytes);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("chunk ", last.frame, ":"))) << status;
  EXPECT_FALSE(bytes.front().empty());
}

}  // namespace
}  // namespace rekindle::store
