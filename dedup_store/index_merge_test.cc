// What merges of the index take and leave: all pages are found, whatever their number, in a fixed amount of
// memory.
#include "dedup_store/index_merge.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/sanitized.h"
#include "dedup_store/hooked_store_testing.h"
#include "dedup_store/index_file.h"
#include "dedup_store/page_index.h"
#include "dedup_store/sparse_pack.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

class IndexMergeTest : public HookedStoreTest {
 protected:
  void SetUp() override {
    HookedStoreTest::SetUp();
    store_.reset();
    auto core = StoreCore::Open(options_);
    RK_ASSERT_OK(core);
    core_ = *core;
  }

  void MakePacks(size_t packs, uint32_t pages) {
    for (size_t i = 0; i < packs; ++i) {
      MakeSparsePack(*core_, made_, pages);
      made_ += pages;
    }
  }
  std::vector<IndexRecord> Indexes() const { return *core_->catalog().Read()->Indexes(); }
  size_t LoosePacks() const {
    const std::vector<PackRecord> packs = *core_->catalog().Read()->Packs();
    return static_cast<size_t>(
        std::count_if(packs.begin(), packs.end(), [](const PackRecord& pack) { return pack.index_id == 0; }));
  }
  // Each page once, and nothing else.
  void ExpectAllFound(uint64_t step = 1) const {
    auto index = PageIndex::Load(core_.get());
    RK_ASSERT_OK(index);
    for (uint64_t page = 0; page < made_; page += step) {
      ASSERT_EQ((*index)->Count(SparseFingerprint(page)), 1u) << page;
    }
    for (uint64_t page = made_; page < made_ + 1000; ++page) {
      ASSERT_EQ((*index)->Count(SparseFingerprint(page)), 0u) << page;
    }
  }
  std::string Bytes(const IndexRecord& record) const { return *ReadFile(core_->index_path(record.id)); }
  // In the last entry, which says where the page is: all before it is read by then.
  void DamageTheEndOf(const IndexRecord& record) {
    std::string bytes = Bytes(record);
    bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
    RK_ASSERT_OK(core_->io()->Unlink(core_->index_path(record.id)));
    auto file = core_->io()->CreateBuffered(core_->index_path(record.id));
    RK_ASSERT_OK(file);
    RK_ASSERT_OK((*file)->WriteAt(0, rekindle::store::Bytes(bytes)));
    EXPECT_TRUE(absl::IsDataLoss(VerifyIndexFile(core_.get(), record)));
  }
  size_t IndexFiles() const {
    const std::vector<std::string> names = *ListDirectory(core_->index_folder());
    return static_cast<size_t>(std::count_if(
        names.begin(), names.end(), [](const std::string& name) { return absl::EndsWith(name, ".idx"); }));
  }

  std::shared_ptr<StoreCore> core_;
  uint64_t made_ = 0;
};

TEST_F(IndexMergeTest, AFileIsAsItIsDescribed) {
  MakePacks(3, 100'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  MakePacks(2, 170'001);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  ASSERT_EQ(Indexes().size(), 1u);
  const IndexRecord record = Indexes().front();
  EXPECT_EQ(record.entries, made_);
  const std::string bytes = Bytes(record);
  EXPECT_EQ(bytes.size(), record.file_bytes);
  RK_ASSERT_OK(VerifyIndexFile(core_.get(), record));
  IndexHeader header;
  ASSERT_GT(bytes.size(), sizeof header);
  memcpy(&header, bytes.data(), sizeof header);
  EXPECT_EQ(header.body_checksum, Checksum(absl::string_view(bytes).substr(sizeof header)));
  EXPECT_EQ(header.entries, made_);
  EXPECT_EQ(header.packs, 5u);
  EXPECT_GT(header.bucket_bits, 15u);  // several slices
  const uint64_t buckets = uint64_t{1} << header.bucket_bits;
  std::vector<uint32_t> starts(buckets + 1);
  memcpy(starts.data(), bytes.data() + header.buckets_at, starts.size() * sizeof(uint32_t));
  std::vector<IndexEntry> entries(header.entries);
  ASSERT_EQ(header.entries_at + entries.size() * sizeof(IndexEntry), bytes.size());
  memcpy(entries.data(), bytes.data() + header.entries_at, entries.size() * sizeof(IndexEntry));
  uint32_t at = 0;
  for (uint64_t bucket = 0; bucket < buckets; ++bucket) {
    ASSERT_EQ(starts[bucket], at) << bucket;
    for (; at < entries.size() && entries[at].fingerprint >> (64 - header.bucket_bits) == bucket; ++at) {
      ASSERT_TRUE(at == 0 || entries[at - 1].fingerprint <= entries[at].fingerprint) << at;
      ASSERT_LT(entries[at].pack, header.packs);
    }
  }
  EXPECT_EQ(at, entries.size());
  EXPECT_EQ(starts[buckets], at);
  ExpectAllFound();
}

TEST_F(IndexMergeTest, TheSmallestFilesAre) {
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  EXPECT_TRUE(Indexes().empty());
  for (uint32_t pages : {1, 2, 9, 1000}) {
    MakePacks(1, pages);
    RK_ASSERT_OK(MergeIndexes(core_.get(), true));
    for (const IndexRecord& record : Indexes()) RK_ASSERT_OK(VerifyIndexFile(core_.get(), record));
    ExpectAllFound();
  }
  EXPECT_EQ(LoosePacks(), 0u);
}

// More than what of packs' tables is held at a time, and much more than the memory that it may take.
TEST_F(IndexMergeTest, TheMemoryIsTheSameHoweverManyPagesThereAre) {
  constexpr double kMost = 100 * kMiB;
  MakePacks(8, kSanitized ? 60'000 : 1'000'000);
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak from here on
  const auto resident = [](const std::string& key) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, key)) return strtod(line.c_str() + key.size(), nullptr) * 1024;
    }
    return 0.0;
  };
  const double before = resident("VmRSS:");
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  const double taken = resident("VmHWM:") - before;
  EXPECT_TRUE(kSanitized || taken < kMost) << taken / kMiB << " MiB";
  EXPECT_EQ(LoosePacks(), 0u);
  EXPECT_EQ(Indexes().front().entries, made_);
  ExpectAllFound(7);
}

// Their tables are held in memory by whoever writes an image.
TEST_F(IndexMergeTest, FewPacksWithManyPagesAreMerged) {
  if (kSanitized)
    GTEST_SKIP() << "a sanitizer: millions of pages for code that the other tests go through too";
  MakePacks(4, 1'000'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), false));
  EXPECT_EQ(LoosePacks(), 4u);
  MakePacks(1, 300'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), false));
  EXPECT_EQ(LoosePacks(), 0u);
  ExpectAllFound(11);
}

TEST_F(IndexMergeTest, WhatAnotherHasMergedMeanwhileIsNotDamaged) {
  MakePacks(2, 1000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  const std::string old = core_->index_path(Indexes().front().id);
  MakePacks(1, 1000);
  bool merged = false;
  hook_ = [&](const HookedDisk::Operation& operation) {
    if (operation.call != HookedDisk::Call::kOpen || operation.path != old || std::exchange(merged, true))
      return absl::OkStatus();
    return MergeIndexes(core_.get(), true);
  };
  testing::internal::CaptureStderr();
  const absl::Status status = MergeIndexes(core_.get(), true);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  RK_ASSERT_OK(status);
  EXPECT_TRUE(merged);
  EXPECT_EQ(LoosePacks(), 0u);
  EXPECT_EQ(IndexFiles(), 1u);
  ExpectAllFound();
}

TEST_F(IndexMergeTest, AFileThatProvesToBeDamagedIsLeftOutAndItsPacksAreAsked) {
  MakePacks(3, 100'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  const IndexRecord old = Indexes().front();
  DamageTheEndOf(old);
  MakePacks(2, 100'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  ASSERT_EQ(Indexes().size(), 1u);
  EXPECT_NE(Indexes().front().id, old.id);
  EXPECT_EQ(Indexes().front().entries, made_);
  EXPECT_EQ(LoosePacks(), 0u);
  ExpectAllFound();
  EXPECT_TRUE(ListDirectory(core_->path() + "/tmp")->empty());
}

// The sound ones are begun again, too, wherever they were when the damage was found.
TEST_F(IndexMergeTest, SoundFilesAreUsedBesideADamagedOne) {
  MakePacks(4, 100'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  const IndexRecord sound = Indexes().front();
  std::set<std::string> tables_of_sound;
  const auto packs = core_->catalog().Read()->Packs();
  ASSERT_TRUE(packs.ok()) << packs.status();
  for (const PackRecord& pack : *packs) tables_of_sound.insert(core_->page_table_path(pack.id));
  MakePacks(1, 50'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  ASSERT_EQ(Indexes().size(), 2u);
  for (const IndexRecord& record : Indexes()) {
    if (record.id != sound.id) DamageTheEndOf(record);
  }
  MakePacks(2, 100'000);
  size_t asked = 0;
  hook_ = [&](const HookedDisk::Operation& operation) {
    asked += operation.call == HookedDisk::Call::kOpen ? tables_of_sound.count(operation.path) : 0;
    return absl::OkStatus();
  };
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  hook_ = [](const HookedDisk::Operation&) { return absl::OkStatus(); };
  EXPECT_EQ(asked, 0u);
  ASSERT_EQ(Indexes().size(), 1u);
  EXPECT_EQ(Indexes().front().entries, made_);
  EXPECT_EQ(LoosePacks(), 0u);
  ExpectAllFound(3);
}

TEST_F(IndexMergeTest, ManyLoosePagesAreMergedStepByStep) {
  MakePacks(7, 50'000);
  MakePacks(1, 150'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true, 100'000));
  EXPECT_EQ(LoosePacks(), 0u);
  uint64_t entries = 0;
  for (const IndexRecord& record : Indexes()) {
    RK_ASSERT_OK(VerifyIndexFile(core_.get(), record));
    entries += record.entries;
  }
  EXPECT_EQ(entries, made_);
  EXPECT_EQ(IndexFiles(), Indexes().size());
  ExpectAllFound(3);
}

TEST_F(IndexMergeTest, OfADamagedFileNoMoreIsTakenThanOfLoosePacks) {
  MakePacks(4, 50'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  DamageTheEndOf(Indexes().front());
  MakePacks(1, 100'000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true, 100'000));
  EXPECT_EQ(LoosePacks(), 4u);
  ExpectAllFound(3);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true, 100'000));
  EXPECT_EQ(LoosePacks(), 0u);
  EXPECT_EQ(IndexFiles(), Indexes().size());
  ExpectAllFound(3);
}

TEST_F(IndexMergeTest, PacksThatCannotBeReadAloneAreNoReasonToMerge) {
  MakePacks(1, 1000);
  RK_ASSERT_OK(MergeIndexes(core_.get(), true));
  const IndexRecord before = Indexes().front();
  std::vector<PackRecord> lost;
  for (int i = 0; i < 20; ++i) lost.push_back(MakeSparsePack(*core_, 1'000'000 + 400u * i, 400));
  for (const PackRecord& pack : lost) RK_ASSERT_OK(core_->io()->Unlink(core_->pack_path(pack.id)));
  for (const bool all : {false, true}) {
    RK_ASSERT_OK(MergeIndexes(core_.get(), all));
    ASSERT_EQ(Indexes().size(), 1u);
    EXPECT_EQ(Indexes().front().id, before.id);
  }
  MakePacks(9, 400);
  RK_ASSERT_OK(MergeIndexes(core_.get(), false));
  ASSERT_EQ(Indexes().size(), 1u);
  EXPECT_EQ(Indexes().front().entries, made_);
  EXPECT_EQ(LoosePacks(), lost.size());
}

TEST_F(IndexMergeTest, OfTwoThatMergeTheSamePacksOneLeavesAFile) {
  class InterruptedDisk : public HookedDisk {
   public:
    using HookedDisk::HookedDisk;
    absl::Status BeforeCatalogCommit(absl::string_view) override {
      if (before_commit) std::exchange(before_commit, nullptr)();
      return absl::OkStatus();
    }
    std::function<void()> before_commit;
  };
  MakePacks(3, 1000);
  InterruptedDisk disk([](const HookedDisk::Operation&) { return absl::OkStatus(); });
  StoreOptions options = options_;
  options.io = &disk;
  auto other = StoreCore::Open(options);
  RK_ASSERT_OK(other);
  uint64_t first = 0;
  disk.before_commit = [&] {
    RK_ASSERT_OK(MergeIndexes(core_.get(), true));
    ASSERT_EQ(Indexes().size(), 1u);
    first = Indexes().front().id;
  };
  RK_ASSERT_OK(MergeIndexes(other->get(), true));
  EXPECT_EQ(disk.before_commit, nullptr);
  ASSERT_EQ(Indexes().size(), 1u);
  EXPECT_EQ(Indexes().front().id, first);
  EXPECT_EQ(IndexFiles(), 1u);
  EXPECT_EQ(LoosePacks(), 0u);
  ExpectAllFound();
}

}  // namespace
}  // namespace rekindle::store
