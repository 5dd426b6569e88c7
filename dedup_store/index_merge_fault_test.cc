// Fails every single I/O operation of a merge of the index in turn: an error, a full disk, kill -9, a loss of
// power. No page is lost to look-ups, and the next merge does what this one did not.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dedup_store/fault_count.h"
#include "dedup_store/faulty_disk.h"
#include "dedup_store/index_file.h"
#include "dedup_store/index_merge.h"
#include "dedup_store/page_index.h"
#include "dedup_store/place_step.h"
#include "dedup_store/sparse_pack.h"
#include "dedup_store/store_files.h"

namespace rekindle::store {
namespace {

class IndexMergeFaultTest : public DamagedManyTimesTest {
 protected:
  // An index file, and packs that it does not cover. Of what is written there is more than one buffer.
  void SetUp() override {
    DamagedManyTimesTest::SetUp();
    Reopen();
    store_.reset();
    auto core = StoreCore::Open(options_);
    RK_ASSERT_OK(core);
    MakeSparsePack(**core, 0, 40'000);
    RK_ASSERT_OK(MergeIndexes(core->get(), true));
    MakeSparsePack(**core, 40'000, 25'000);
    MakeSparsePack(**core, 65'000, 5'000);
  }
  static constexpr uint64_t kPages = 70'000;

  // The packs stay as they are.
  std::map<std::string, StoreFiles> Save() const {
    std::map<std::string, StoreFiles> saved;
    for (const char* folder : {"catalog", "index", "tmp"}) {
      saved[folder] = SaveStore(absl::StrCat(options_.path, "/", folder));
    }
    return saved;
  }
  void Restore(const std::map<std::string, StoreFiles>& saved) const {
    for (const auto& [folder, files] : saved) RestoreStore(absl::StrCat(options_.path, "/", folder), files);
  }

  static absl::Status Merge(const StoreOptions& options, int* before = nullptr) {
    RK_ASSIGN_OR_RETURN(const std::shared_ptr<StoreCore> core, StoreCore::Open(options));
    if (before != nullptr) *before = static_cast<FaultyDisk*>(options.io)->operations();
    return MergeIndexes(core.get(), true);
  }

  void ExpectAllFound(StoreCore& core) const {
    auto index = PageIndex::Load(&core);
    RK_ASSERT_OK(index);
    auto any = [](const Pack&, uint32_t) { return true; };
    for (uint64_t page = 0; page < kPages; page += 13) {
      ASSERT_TRUE((*index)->Find(SparseFingerprint(page), any)) << page;
    }
  }

  void ExpectMerged() const {
    auto core = StoreCore::Open(options_);
    RK_ASSERT_OK(core);
    auto txn = (*core)->catalog().Read();
    RK_ASSERT_OK(txn);
    const std::vector<IndexRecord> indexes = *txn->Indexes();
    uint64_t entries = 0;
    for (const IndexRecord& index : indexes) {
      entries += index.entries;
      RK_ASSERT_OK(VerifyIndexFile(core->get(), index));
    }
    EXPECT_EQ(entries, kPages);
    ExpectAllFound(**core);
  }

  FaultCount count_;
};

TEST_F(IndexMergeFaultTest, NoPageIsLostToLookUps) {
  const std::map<std::string, StoreFiles> saved = Save();
  for (Fault fault : kAllFaults) {
    int first = 0;
    Restore(saved);
    {
      FaultyDisk sound(fault, 1'000'000);
      StoreOptions options = options_;
      options.io = &sound;
      RK_ASSERT_OK(Merge(options, &first));
      sound.PowerUp();
    }
    bool hit = true;
    // Other ones for each fault, where some are passed over.
    for (int fail_at = first + 1 + static_cast<int>(fault) % kPlaceStep; hit; fail_at += kPlaceStep) {
      SCOPED_TRACE(absl::StrCat(FaultName(fault), " at operation ", fail_at));
      Restore(saved);
      FaultyDisk disk(fault, fail_at);
      StoreOptions faulty = options_;
      faulty.io = &disk;
      const absl::Status merged = Merge(faulty);
      hit = disk.was_hit();
      if (hit) count_.Add(fault);
      disk.PowerUp();
      EXPECT_TRUE(merged.ok() || hit) << merged;
      {
        auto core = StoreCore::Open(options_);
        RK_ASSERT_OK(core);
        ExpectAllFound(**core);
      }
      // It leaves nothing behind where it lives on.
      const bool may_leave_some = !LivesOn(fault) || !KeepsFiles(fault) || !merged.ok();
      EXPECT_TRUE(may_leave_some || ListDirectory(options_.path + "/tmp")->empty());
      RK_ASSERT_OK(Merge(options_));
      if (KeepsFiles(fault)) ExpectMerged();
      if (HasFailure()) {
        ADD_FAILURE() << "the merge said: " << merged;
        return;
      }
    }
    EXPECT_GT(count_.of(fault), 0) << FaultName(fault);
  }
}

}  // namespace
}  // namespace rekindle::store
