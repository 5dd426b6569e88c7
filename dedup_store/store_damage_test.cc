// Damaged files: everything is noticed, nothing wrong is handed out, and what is not damaged stays readable.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/test_descriptors.h"
#include "dedup_store/format.h"
#include "dedup_store/manifest.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class StoreDamageTest : public TroubledStoreTest {
 protected:
  void SetUp() override {
    TroubledStoreTest::SetUp();
    first_.objects["m"][0] = MakePages(60, 1) + MakePages(60, 2, Content::kText);
    first_.blobs["b"] = std::string(5000, 'b') + "first";
    second_.objects["m"][0] = MakePages(20, 3);
    third_.objects["m"][0] = MakePages(5, 4) + first_.objects["m"][0].substr(119 * kPageSize, kPageSize);
    RK_ASSERT_OK(first_.Commit(*store_, "first"));
    NewImageOptions sparing;  // frames with a MAC
    sparing.reference = "second";
    sparing.sparing = true;
    RK_ASSERT_OK(second_.Commit(*store_, sparing));
    RK_ASSERT_OK(third_.Commit(*store_, "third"));
  }

  std::vector<std::string> Files(const std::string& folder) {
    auto names = ListDirectory(options_.path + "/" + folder);
    EXPECT_TRUE(names.ok());
    std::vector<std::string> paths;
    for (const std::string& name : names.value()) paths.push_back(options_.path + "/" + folder + "/" + name);
    return paths;
  }

  static void FlipBit(const std::string& path, uint64_t offset) {
    int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= 0x10;
    ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    close(fd);
  }

  // Offsets of bytes that mean something, several in each region of the pack; true where the byte is
  // compressed.
  static std::map<uint64_t, bool> Interesting(const std::string& path) {
    auto bytes = ReadFile(path);
    EXPECT_TRUE(bytes.ok());
    PackFooter footer;
    memcpy(&footer, bytes->data() + bytes->size() - sizeof footer, sizeof footer);
    std::map<uint64_t, bool> offsets;
    for (uint64_t o : {size_t{0}, size_t{8}, size_t{60}, sizeof(PackHeader) - 1}) offsets[o] = false;
    for (uint64_t o = 0; o < sizeof footer; o += 15) offsets[bytes->size() - sizeof footer + o] = false;
    for (const SectionEntry& section : footer.sections) {
      for (uint64_t o = section.offset; o < section.offset + section.bytes; o += 1 + section.bytes / 3)
        offsets[o] = false;
    }
    std::vector<FrameEntry> frames(footer.frames);
    memcpy(frames.data(), bytes->data() + footer.sections[kFrames].offset, footer.sections[kFrames].bytes);
    for (const FrameEntry& frame : frames) {
      for (uint64_t within : {0u, frame.stored_bytes / 2, frame.stored_bytes - 1})
        offsets[frame.offset() + within] = frame.codec() == Codec::kZstd;
    }
    return offsets;
  }

  TestImage first_, second_, third_;
};

TEST_F(StoreDamageTest, EveryFlippedBitOfAPackIsNoticedAndNoWrongByteComesOut) {
  const std::map<std::string, const TestImage*> images = {
      {"first", &first_}, {"second", &second_}, {"third", &third_}};
  for (const std::string& path : Files("packs")) {
    for (auto [offset, compressed] : Interesting(path)) {
      SCOPED_TRACE(absl::StrCat(path, " at ", offset));
      FlipBit(path, offset);
      Reopen();
      std::vector<std::string> unreadable;
      for (const auto& [name, image] : images) {
        auto difference = image->Compare(*store_, name);
        if (!difference.ok()) {
          unreadable.push_back(name);
          EXPECT_TRUE(absl::IsDataLoss(difference.status()) ||
                      absl::IsFailedPrecondition(difference.status()))
              << difference.status();
          EXPECT_NE(difference.status().message().find(name), absl::string_view::npos) << difference.status();
        } else {
          EXPECT_EQ(*difference, "");
        }
      }
      FsckOptions options;
      options.read_data = true;
      auto report = store_->Fsck(options);
      RK_ASSERT_OK(report);
      // zstd's format has bits that no decoder reads: there every page comes out right, and nothing is
      // damaged.
      EXPECT_TRUE(!report->problems.empty() || (compressed && unreadable.empty()));
      for (const std::string& name : unreadable) {
        EXPECT_TRUE(std::count(report->lost_images.begin(), report->lost_images.end(), name + ":latest"))
            << name;
      }
      FlipBit(path, offset);
      if (HasFailure()) return;
    }
  }
  Reopen();
  ExpectWhole();
}

TEST_F(StoreDamageTest, RepairDropsTheLostAndKeepsTheOthers) {
  // A byte that only the first image uses; the third shares another chunk with it.
  auto packs = Files("packs");
  std::string path;
  for (const std::string& candidate : packs) {
    auto bytes = ReadFile(candidate);
    RK_ASSERT_OK(bytes);
    if (bytes->find(first_.objects["m"][0].substr(10 * kPageSize, 64)) != std::string::npos) path = candidate;
  }
  auto bytes = ReadFile(path);
  RK_ASSERT_OK(bytes);
  FlipBit(path, bytes->find(first_.objects["m"][0].substr(50 * kPageSize, 64)));
  Reopen();
  FsckOptions options;
  options.read_data = true;
  options.repair = true;
  auto report = store_->Fsck(options);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->lost_images, std::vector<std::string>{"first:latest"});
  EXPECT_TRUE(absl::IsNotFound(store_->Find("first").status()));
  RK_ASSERT_OK(store_->Gc({}));
  ExpectWhole();
  second_.ExpectIn(*store_, "second");
  third_.ExpectIn(*store_, "third");
  // What is stored again does not come to lean on the damaged page.
  RK_ASSERT_OK(first_.Commit(*store_, "first"));
  first_.ExpectIn(*store_, "first");
}

TEST_F(StoreDamageTest, ADamagedPageTableIsMadeAnewFromTheData) {
  size_t tables = 0;
  for (const std::string& path : Files("index")) {
    if (path.find(".pages") == std::string::npos) continue;
    ++tables;
    auto whole = ReadFile(path);
    RK_ASSERT_OK(whole);
    for (uint64_t offset : {uint64_t{3}, uint64_t{20}, uint64_t{40}, uint64_t{whole->size() - 1}}) {
      FlipBit(path, offset);
      Reopen();
      FsckOptions options;
      auto report = store_->Fsck(options);
      RK_ASSERT_OK(report);
      EXPECT_EQ(report->problems.size(), 1u);
      options.repair = true;
      RK_ASSERT_OK(store_->Fsck(options));
      ExpectWhole();
      auto mended = ReadFile(path);
      RK_ASSERT_OK(mended);
      EXPECT_EQ(*mended, *whole);
      // And without a repair: the next image that wants it makes it.
      FlipBit(path, offset);
      Reopen();
      auto again = first_.Commit(*store_, "again", "first", true);
      RK_ASSERT_OK(again);
      EXPECT_EQ(again->stats.new_bytes, 0u);
      first_.ExpectIn(*store_, "again");
      RK_ASSERT_OK(Repair());
    }
  }
  EXPECT_EQ(tables, 3u);
}

TEST_F(StoreDamageTest, ALostPackCostsOnlyTheImagesThatNeedIt) {
  for (const std::string& path : Files("packs")) {
    auto bytes = ReadFile(path);
    RK_ASSERT_OK(bytes);
    if (bytes->find(second_.objects["m"][0].substr(0, 64)) != std::string::npos)
      RK_ASSERT_OK(RemoveTree(path));
  }
  Reopen();
  auto difference = second_.Compare(*store_, "second");
  EXPECT_TRUE(absl::IsDataLoss(difference.status())) << difference.status();
  FsckOptions options;
  options.repair = true;
  auto report = store_->Fsck(options);
  RK_ASSERT_OK(report);
  EXPECT_EQ(report->lost_images, std::vector<std::string>{"second:latest"});
  ExpectWhole();
  first_.ExpectIn(*store_, "first");
  third_.ExpectIn(*store_, "third");
}

TEST_F(StoreDamageTest, ADamagedIndexFileLosesNothing) {
  for (int i = 0; i < 10; ++i) {
    TestImage image;
    image.objects["m"][0] = MakePages(3, 500 + i);
    RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("more:", i)));
  }
  size_t indexes = 0;
  for (const std::string& path : Files("index")) {
    if (path.find(".idx") == std::string::npos) continue;
    ++indexes;
    for (uint64_t offset : {0, 40, 100, 200}) {
      SCOPED_TRACE(offset);
      FlipBit(path, offset);
      Reopen();
      RK_ASSERT_OK(first_.Commit(*store_, absl::StrCat("again:", offset)));
      first_.ExpectIn(*store_, absl::StrCat("again:", offset));
      auto report = store_->Fsck({});
      RK_ASSERT_OK(report);
      EXPECT_FALSE(report->problems.empty());
      EXPECT_TRUE(report->lost_images.empty());
      FlipBit(path, offset);
    }
  }
  EXPECT_GT(indexes, 0u);
}

TEST_F(StoreDamageTest, ALostCatalogIsMadeAgainFromThePacks) {
  RK_ASSERT_OK(second_.Commit(*store_, "second", "", true));
  const size_t images = store_->List()->size();
  for (bool removed : {true, false}) {
    SCOPED_TRACE(removed);
    store_.reset();
    for (const std::string& path : Files("catalog")) {
      if (removed) {
        RK_ASSERT_OK(RemoveTree(path));
      } else if (auto bytes = ReadFile(path); bytes.ok() && bytes->size() > 100) {
        FlipBit(path, 100);
      }
    }
    auto refused = Store::Open(options_).status();
    EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
    options_.rebuild_catalog = true;
    Reopen();
    auto report = store_->Fsck({});
    RK_ASSERT_OK(report);
    EXPECT_FALSE(report->problems.empty());
    EXPECT_TRUE(report->lost_images.empty());
    RK_ASSERT_OK(Repair());
    options_.rebuild_catalog = false;
    Reopen();
    EXPECT_EQ(store_->List()->size(), images);
    for (const auto& [name, image] :
         {std::pair("first", &first_), {"second", &second_}, {"third", &third_}}) {
      image->ExpectIn(*store_, name);
    }
    ExpectWhole();
    EXPECT_EQ(first_.Commit(*store_, "first", "", true)->stats.new_bytes, 0u);
  }
}

TEST_F(StoreDamageTest, RefusesWhatIsNoStoreOrANewerOne) {
  store_.reset();
  const std::string format = options_.path + "/FORMAT";
  auto good = ReadFile(format);
  RK_ASSERT_OK(good);
  auto open_with = [&](const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(format, text).ok());
    return Store::Open(options_).status();
  };
  auto json = nlohmann::ordered_json::parse(*good);
  json["version"] = 9;
  std::string sealed =
      absl::StrCat(json["uuid"].get<std::string>(), "/", json["seed"].get<std::string>(), "/9");
  json["checksum"] = absl::StrCat(absl::Hex(Checksum(sealed).lo, absl::kZeroPad16));
  auto status = open_with(json.dump(2) + "\n");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("format 9"), absl::string_view::npos) << status;

  // A damaged or lost one is known from the packs.
  std::vector<std::string> damaged = {"", "{}"};
  for (size_t byte = 0; byte < good->size(); ++byte) {
    damaged.push_back(*good);
    damaged.back()[byte] = static_cast<char>(damaged.back()[byte] ^ 1 << byte % 8);
  }
  for (const std::string& text : damaged) {
    SCOPED_TRACE(text);
    RK_ASSERT_OK(open_with(text));
    Reopen();
    EXPECT_EQ(store_->Fsck({})->problems.size(), 1u);
    third_.ExpectIn(*store_, "third");
    RK_ASSERT_OK(Repair());
    EXPECT_EQ(*ReadFile(format), *good);
    Reopen();
    ExpectWhole(false);
    store_.reset();
  }
  ASSERT_EQ(unlink(format.c_str()), 0);
  Reopen();
  third_.ExpectIn(*store_, "third");

  StoreOptions other = options_;
  other.path = folder_->path() + "/letters";
  RK_ASSERT_OK(MakeDirectories(other.path));
  RK_ASSERT_OK(WriteFileAtomically(other.path + "/love.txt", "dear"));
  status = Store::Open(other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ListDirectory(other.path)->size(), 1u);
  other.path = folder_->path() + "/none";
  other.create = false;
  EXPECT_TRUE(absl::IsNotFound(Store::Open(other).status()));
  EXPECT_FALSE(PathExists(other.path));
}

// As who has made the folder beforehand, or has mounted a new file system there, expects.
TEST_F(StoreDamageTest, AnEmptyFolderIsAStoreThatIsNotMadeYet) {
  StoreOptions other = options_;
  other.path = folder_->path() + "/new";
  RK_ASSERT_OK(MakeDirectories(other.path + "/lost+found"));
  for (const bool read_only : {true, false}) {
    other.create = other.read_only = read_only;
    const absl::Status status = Store::Open(other).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_NE(status.message().find("empty"), absl::string_view::npos) << status;
    EXPECT_EQ(ListDirectory(other.path)->size(), 1u);
  }
  // So far came who made it, and died.
  RK_ASSERT_OK(MakeDirectories(other.path + "/packs"));
  RK_ASSERT_OK(MakeDirectories(other.path + "/catalog"));
  EXPECT_TRUE(absl::IsNotFound(Store::Open(other).status()));
  other.create = true;
  auto made = Store::Open(other);
  RK_ASSERT_OK(made);
  RK_ASSERT_OK(third_.Commit(**made, "third"));
  EXPECT_TRUE(PathExists(other.path + "/lost+found"));
  other.create = false;
  RK_ASSERT_OK(Store::Open(other));
}

TEST(ManifestDamage, NoDamagedManifestIsAccepted) {
  Manifest manifest;
  manifest.packs = {1, 2};
  manifest.objects = {{"m", {{0, 5, 0, 7}, {5, 3, Extent::kZero, 0}, {9, 2, 1, 0}}}};
  manifest.blobs = {{"b", 0, 100, {}}};
  manifest.blob_stream = {{0, 1, 0, 0}};
  const std::string good = manifest.Encode();
  auto decoded = Manifest::Decode(good);
  RK_ASSERT_OK(decoded);
  EXPECT_EQ(decoded->Encode(), good);
  // Every extent that a damaged one yields must at least stay in the list of packs; never a crash.
  for (size_t byte = 0; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ 1 << bit);
      auto result = Manifest::Decode(bad);
      if (!result.ok()) continue;
      for (const PagedObject& object : result->objects) {
        for (const Extent& e : object.extents) EXPECT_TRUE(e.zero() || e.pack < result->packs.size());
      }
    }
  }
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Manifest::Decode(absl::string_view(good).substr(0, length)).ok());
  }
}

TEST_F(StoreDamageTest, FsckKeepsNoDescriptorOfAPackThatItHasChecked) {
  for (uint64_t i = 0; i < 20; ++i) {
    TestImage image;
    image.objects["m"][0] = MakePages(2, 100 + i);
    RK_ASSERT_OK(image.Commit(*store_, absl::StrCat("many:", i)));
  }
  Reopen();
  const FewDescriptorsLeft few(8);
  ExpectWhole();
}

}  // namespace
}  // namespace rekindle::store
