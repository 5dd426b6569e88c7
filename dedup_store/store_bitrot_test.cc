// Flips one bit in every block of every file of a small store, one at a time: each is detected, costs only
// the images that use it, and a repair leaves a clean store.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dedup_store/catalog.h"
#include "dedup_store/format.h"
#include "dedup_store/manifest.h"
#include "dedup_store/place_step.h"
#include "dedup_store/store_files.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kFlipBlockBytes = 4096;
constexpr uint32_t kSeed = 20260;

// Text that zstd shrinks as it is.
std::string Prose(size_t pages, uint32_t seed) {
  static constexpr const char* kWords[] = {"freeze", "a ",         "running", " job,", " and",
                                           " bring", " it back\n", "store ",  "page",  "the ",
                                           "image ", "of 17",      "bytes; "};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < pages * kPageSize) text += kWords[random() % std::size(kWords)];
  text.resize(pages * kPageSize);
  return text;
}

// Words of which some bytes are equal and the others random: to be compressed by planes.
std::string Words(size_t pages, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(pages * kPageSize, '\0');
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = 0x3fd0550000000000 | (random() & 0xffffffffff);
    memcpy(&bytes[i], &word, 8);
  }
  return bytes;
}

// A part of a file and whom it is needed for.
struct Region {
  uint64_t begin = 0, end = 0;
  std::set<std::string> images;  // references
  bool compressed = false;       // has bits that no decoder reads
};

struct PackContent {
  uint64_t id = 0;
  PackFooter footer;
  std::vector<FrameEntry> frames;
  std::optional<Manifest> manifest;
  std::optional<ImageRecord> record;

  PackContent(uint64_t pack_id, const std::string& bytes) : id(pack_id) {
    memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
    frames.resize(footer.frames);
    const SectionEntry* sections = footer.sections;
    if (!frames.empty()) {
      memcpy(frames.data(), bytes.data() + sections[kFrames].offset, sections[kFrames].bytes);
    }
    auto decoded = Manifest::Decode(bytes.substr(sections[kManifest].offset, sections[kManifest].bytes));
    if (decoded.ok()) manifest = *std::move(decoded);
    auto image =
        ImageRecord::Decode(bytes.substr(sections[kImageRecord].offset, sections[kImageRecord].bytes));
    if (image.ok()) record = *std::move(image);
  }
};

class StoreBitRotTest : public DamagedManyTimesTest {
 protected:
  void SetUp() override {
    DamagedManyTimesTest::SetUp();
    options_.worker_threads = 1;
    quota_.owner.emplace(4711, uint64_t{1} << 30);
    Reopen();
    const std::string prose = Prose(24, 1), raw = MakePages(24, 2), words = Words(24, 3);
    images_["prose:1"].objects["heap"][0x10000] = prose;
    images_["prose:1"].blobs["core.img"] = std::string(6000, 'c') + "core";
    images_["raw:1"].objects["heap"][0] = raw;
    images_["words:1"].objects["weights"][0x4000] = words;
    TestImage child = images_["raw:1"];
    child.objects["heap"][0].replace(3 * kPageSize, 5 * kPageSize, MakePages(5, 4));
    child.blobs["core.img"] = "another";
    TestImage mixed;
    mixed.objects["heap"][0] = words.substr(8 * kPageSize, 2 * kPageSize) + MakePages(3, 0, Content::kZero) +
                               prose.substr(20 * kPageSize) + Prose(6, 5);
    TestImage gone;
    gone.objects["heap"][0] = MakePages(20, 6) + Prose(16, 7);
    for (const auto& [reference, image] : images_) RK_ASSERT_OK(image.Commit(*store_, reference));
    images_["raw:2"] = child;
    RK_ASSERT_OK(child.Commit(*store_, "raw:2", "raw:1"));
    images_["mixed:1"] = mixed;
    RK_ASSERT_OK(mixed.Commit(*store_, "mixed:1"));
    // Of a pack that gc made holes in, and whose manifest is gone, an image needs what is left.
    RK_ASSERT_OK(gone.Commit(*store_, "gone:1"));
    TestImage heir;
    heir.objects["heap"][0] = gone.objects["heap"][0].substr(20 * kPageSize);
    images_["heir:1"] = heir;
    RK_ASSERT_OK(heir.Commit(*store_, "heir:1"));
    RK_ASSERT_OK(store_->Remove("gone:1"));
    auto freed = store_->Gc({});
    RK_ASSERT_OK(freed);
    EXPECT_EQ(freed->packs_rewritten, 1u);
    // Writes an index file over what is there; the next image is not in it.
    RK_ASSERT_OK(Repair());
    TestImage late;
    late.objects["heap"][0] = MakePages(9, 8) + words.substr(0, 4 * kPageSize);
    images_["late:1"] = late;
    RK_ASSERT_OK(late.Commit(*store_, "late:1"));
    std::string warning;
    RK_ASSERT_OK(store_->ChangeLimits(quota_, &warning));
    for (const char* reference : {"raw:1", "mixed:1"}) {
      auto image = store_->Find(reference);
      RK_ASSERT_OK(image);
      RK_ASSERT_OK(store_->PutNote(*image, kWorkingSetNote, Prose(1, 9)));
    }
    for (const auto& [reference, image] : images_) image.ExpectIn(*store_, reference);
    ExpectWhole();
    store_.reset();
    files_ = SaveStore(options_.path);
  }

  // The regions of all packs that somebody needs, from their own bytes.
  std::map<std::string, std::vector<Region>> Needed() {
    std::map<uint64_t, std::pair<std::string, PackContent>> packs;
    for (const auto& [name, bytes] : files_) {
      if (!absl::StartsWith(name, "packs/")) continue;
      const uint64_t id = IdOfFileName(absl::string_view(name).substr(6), ".pack");
      packs.try_emplace(id, name, PackContent(id, bytes));
    }
    std::map<uint64_t, std::set<std::string>> whole;                          // pack -> images
    std::map<std::pair<uint64_t, uint32_t>, std::set<std::string>> of_frame;  // pack, frame -> images
    std::map<uint64_t, std::string> home;
    for (const auto& [id, named] : packs) {
      const PackContent& pack = named.second;
      if (!pack.record || !pack.manifest) continue;
      const std::string& reference = pack.record->info.reference;
      home[id] = reference;
      whole[id].insert(reference);
      for (uint64_t other : pack.manifest->packs) whole[other].insert(reference);
      auto use = [&](const std::vector<Extent>& extents) {
        for (const Extent& e : extents) {
          if (e.zero()) continue;
          const uint64_t other = pack.manifest->packs[e.pack];
          const PackContent& data = packs.at(other).second;
          for (uint64_t page = e.pack_page; page < e.pack_page + e.pages; ++page) {
            of_frame[{other, FrameOfPage(data.frames, static_cast<uint32_t>(page))}].insert(reference);
          }
        }
      };
      for (const PagedObject& object : pack.manifest->objects) use(object.extents);
      use(pack.manifest->blob_stream);
    }
    EXPECT_EQ(home.size(), images_.size());
    std::map<std::string, std::vector<Region>> needed;
    std::set<Codec> codecs;
    for (const auto& [id, named] : packs) {
      const auto& [name, pack] = named;
      std::vector<Region>& regions = needed[name];
      const SectionEntry* sections = pack.footer.sections;
      regions.push_back({0, sizeof(PackHeader), whole[id]});
      regions.push_back({files_[name].size() - sizeof(PackFooter), files_[name].size(), whole[id]});
      regions.push_back(
          {sections[kFrames].offset, sections[kFrames].offset + sections[kFrames].bytes, whole[id]});
      for (PackSection section : {kManifest, kImageRecord}) {
        Region region{sections[section].offset, sections[section].offset + sections[section].bytes, {}};
        if (home.count(id) && section == kManifest) region.images = {home[id]};
        // What gc gave back reads as zeros and is nobody's.
        regions.push_back(std::move(region));
      }
      for (uint32_t f = 0; f < pack.frames.size(); ++f) {
        const FrameEntry& frame = pack.frames[f];
        codecs.insert(frame.codec());
        regions.push_back({frame.offset(), frame.offset() + frame.stored_bytes, of_frame[{id, f}],
                           frame.codec() != Codec::kRaw});
      }
    }
    EXPECT_EQ(codecs.size(), 3u) << "raw, zstd and planes";
    return needed;
  }

  // The files' names, packs and what belongs to them in the order in which they were made, so that every run
  // flips the same bits.
  std::vector<std::string> InOrder() const {
    std::map<uint64_t, int64_t> made;
    for (const auto& [name, bytes] : files_) {
      PackHeader header;
      if (!absl::StartsWith(name, "packs/")) continue;
      memcpy(&header, bytes.data(), sizeof header);
      made[header.pack_id] = header.created_unix_ns;
    }
    std::vector<std::pair<std::pair<std::string, int64_t>, std::string>> names;
    for (const auto& [name, bytes] : files_) {
      const size_t slash = name.find('/'), dot = name.rfind('.');
      const uint64_t id = dot == std::string::npos
                              ? 0
                              : IdOfFileName(absl::string_view(name).substr(slash + 1), name.substr(dot));
      auto pack = made.find(id);
      std::string kind = pack == made.end() && name.find(".idx") == std::string::npos
                             ? name
                             : name.substr(0, slash) + name.substr(dot);
      names.push_back({{std::move(kind), pack == made.end() ? 0 : pack->second}, name});
    }
    std::sort(names.begin(), names.end());
    std::vector<std::string> sorted;
    for (auto& [key, name] : names) sorted.push_back(std::move(name));
    return sorted;
  }

  struct Flip {
    std::string file;
    uint64_t offset;
    int bit;
  };

  // What happens to the store with one wrong bit. `compressed`: the bit may be one that no decoder reads.
  void ExpectSurvives(const Flip& flip, const std::set<std::string>& users, bool compressed) {
    Reopen();
    if (HasFatalFailure()) return;
    std::set<std::string> refused;
    for (const auto& [reference, image] : images_) {
      auto difference = image.Compare(*store_, reference);
      if (difference.ok()) {
        EXPECT_EQ(*difference, "") << reference << " came out wrong";
        continue;
      }
      refused.insert(reference);
      EXPECT_TRUE(absl::IsDataLoss(difference.status())) << difference.status();
      EXPECT_TRUE(absl::StrContains(difference.status().message(), reference)) << difference.status();
    }
    // Where no decoder reads the bit every page still comes out right.
    const bool harmless = compressed && refused.empty();
    harmless_ += harmless;
    EXPECT_TRUE(harmless || refused == users) << testing::PrintToString(refused) << " are refused, but "
                                              << testing::PrintToString(users) << " need it";
    FsckOptions options;
    options.read_data = true;
    auto report = store_->Fsck(options);
    RK_ASSERT_OK(report);
    EXPECT_FALSE(report->problems.empty()) << "fsck does not notice it";
    const std::set<std::string> lost(report->lost_images.begin(), report->lost_images.end());
    EXPECT_EQ(lost, users);
    RK_ASSERT_OK(Repair());
    if (flip.file == "LIMITS") {
      // What the administrator wanted can't be known: it takes setting them again.
      TestImage image;
      image.objects["heap"][0] = MakePages(1, 99);
      EXPECT_TRUE(absl::IsDataLoss(image.Commit(*store_, "new:1").status()));
      std::string warning;
      RK_ASSERT_OK(store_->ChangeLimits(quota_, &warning));
      EXPECT_FALSE(warning.empty());
    }
    Reopen();
    if (HasFatalFailure()) return;
    ExpectWhole();
    RK_ASSERT_OK(store_->Gc({}));
    EXPECT_EQ(store_->List()->size(), images_.size() - lost.size());
    for (const auto& [reference, image] : images_) {
      if (!lost.count(reference)) {
        image.ExpectIn(*store_, reference);
      } else {
        EXPECT_TRUE(absl::IsNotFound(store_->Find(reference).status()));
      }
    }
  }

  std::map<std::string, TestImage> images_;
  LimitsChange quota_;
  StoreFiles files_;
  int harmless_ = 0;
};

TEST_F(StoreBitRotTest, OneWrongBitAnywhereIsNoticedAndCostsOnlyWhoNeedsIt) {
  const std::map<std::string, std::vector<Region>> needed = Needed();
  std::mt19937 random(kSeed);
  std::vector<Flip> flips;
  for (const std::string& name : InOrder()) {
    const std::string& bytes = files_[name];
    std::set<uint64_t> offsets;
    for (uint64_t block = 0; block < bytes.size(); block += kFlipBlockBytes) {
      offsets.insert(block + random() % std::min<uint64_t>(kFlipBlockBytes, bytes.size() - block));
    }
    if (!bytes.empty()) {
      offsets.insert(0);
      offsets.insert(bytes.size() - 1);
    }
    // Small things, too, get one.
    if (auto regions = needed.find(name); regions != needed.end()) {
      for (const Region& region : regions->second) {
        if (region.begin < region.end) {
          offsets.insert(region.begin + random() % (region.end - region.begin));
        }
      }
    }
    for (uint64_t offset : offsets) flips.push_back({name, offset, static_cast<int>(random() % 8)});
  }
  int lost = 0;
  for (size_t i = 0; i < flips.size(); i += kPlaceStep) {
    const Flip& flip = flips[i];
    SCOPED_TRACE(absl::StrCat(flip.file, ", bit ", flip.bit, " of byte ", flip.offset));
    std::set<std::string> users;
    bool compressed = false;
    if (auto regions = needed.find(flip.file); regions != needed.end()) {
      for (const Region& region : regions->second) {
        if (flip.offset < region.begin || flip.offset >= region.end) continue;
        users.insert(region.images.begin(), region.images.end());
        compressed |= region.compressed;
      }
    }
    StoreFiles damaged = files_;
    char& byte = damaged[flip.file][flip.offset];
    byte = static_cast<char>(byte ^ 1 << flip.bit);
    RestoreStore(options_.path, damaged);
    ExpectSurvives(flip, users, compressed);
    store_.reset();
    if (HasFailure()) return;
    lost += !users.empty();
  }
  printf(
      "[  bit rot ] %zu flips in %zu files (seed %u): %d cost an image, %d of them though it could still be "
      "read\n",
      flips.size() / kPlaceStep, files_.size(), kSeed, lost, harmless_);
  RecordProperty("flips", static_cast<int>(flips.size() / kPlaceStep));
  EXPECT_GT(lost, 50 / kPlaceStep);
  EXPECT_LT(harmless_, 5);
}

}  // namespace
}  // namespace rekindle::store
