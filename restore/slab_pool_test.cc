#include "restore/slab_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace rekindle::restore {
namespace {

using store::FrameId;
using store::kPageSize;

std::unique_ptr<SlabPool> MakePool(size_t slabs, bool shared = false) {
  auto pool = SlabPool::Make(slabs * SlabPool::kSlabBytes + 5000, shared);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(SlabPool, SlotsFitWithLittleWaste) {
  for (uint32_t pages = 1; pages <= store::kMaxPagesOfFrame; ++pages) {
    EXPECT_GE(SlabPool::SlotBytes(pages), pages * kPageSize);
    EXPECT_LE(SlabPool::SlotBytes(pages), pages * kPageSize * 5 / 4) << pages;
  }
  for (uint32_t pages : {1, 32, 64}) EXPECT_EQ(SlabPool::SlotBytes(pages), pages * kPageSize);
}

TEST(SlabPool, WithoutBudgetThereIsNoSlot) {
  auto pool = SlabPool::Make(SlabPool::kSlabBytes - 1, false);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->budget_bytes(), 0u);
  EXPECT_FALSE((*pool)->Allocate(1, {1, 1}).has_value());
}

TEST(SlabPool, SlotsOfAllSizesDoNotOverlap) {
  auto pool = MakePool(30);
  std::map<std::byte*, std::byte*> taken;
  std::mt19937 random(1);
  uint64_t bytes = 0;
  for (uint32_t n = 0;; ++n) {
    const uint32_t pages = 1 + random() % store::kMaxPagesOfFrame;
    const auto slot = pool->Allocate(pages, {1, n});
    if (!slot) break;
    const absl::Span<std::byte> memory = pool->Memory(*slot);
    ASSERT_GE(memory.size(), pages * kPageSize);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % kPageSize, 0u);
    auto next = taken.lower_bound(memory.data());
    if (next != taken.end()) {
      EXPECT_LE(memory.data() + memory.size(), next->first);
    }
    if (next != taken.begin()) {
      EXPECT_LE(std::prev(next)->second, memory.data());
    }
    taken[memory.data()] = memory.data() + memory.size();
    memory.front() = memory.back() = std::byte{1};
    bytes += memory.size();
  }
  EXPECT_EQ(pool->bytes_in_use(), 30 * SlabPool::kSlabBytes);
  EXPECT_GT(bytes, 10 * SlabPool::kSlabBytes);
}

TEST(SlabPool, AFreedSlabServesAnotherSizeAndGivesItsMemoryBack) {
  for (bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    auto pool = MakePool(10, shared);
    std::vector<SlabPool::Slot> slots;
    for (uint32_t n = 0; auto slot = pool->Allocate(64, {1, n}); ++n) {
      slots.push_back(*slot);
      memset(pool->Memory(*slot).data(), 7, pool->Memory(*slot).size());
    }
    EXPECT_EQ(slots.size(), 80u);
    EXPECT_FALSE(pool->Allocate(1, {2, 0}).has_value());
    std::byte* base = pool->Memory(slots.front()).data();
    for (const SlabPool::Slot& slot : slots) {
      base = std::min(base, pool->Memory(slot).data());
      pool->Free(slot);
    }
    EXPECT_EQ(pool->bytes_in_use(), 0u);
    std::vector<unsigned char> resident(10 * SlabPool::kSlabBytes / kPageSize);
    ASSERT_EQ(mincore(base, 10 * SlabPool::kSlabBytes, resident.data()), 0);
    const auto pages = std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return c & 1; });
    EXPECT_LE(static_cast<uint64_t>(pages) * kPageSize, 4 * SlabPool::kSlabBytes);
    EXPECT_TRUE(pool->Allocate(1, {2, 0}).has_value());
    EXPECT_EQ(pool->bytes_in_use(), SlabPool::kSlabBytes);
  }
}

TEST(SlabPool, SparseSlabsCanBeJoined) {
  auto pool = MakePool(2);
  std::vector<SlabPool::Slot> slots;
  for (uint32_t n = 0; auto slot = pool->Allocate(64, {1, n}); ++n) slots.push_back(*slot);
  ASSERT_EQ(slots.size(), 16u);
  EXPECT_FALSE(pool->SlabToEmpty().has_value());
  // Every second one; of the last slab one more.
  for (size_t i = 0; i < slots.size(); i += 2) pool->Free(slots[i]);
  pool->Free(slots[15]);
  const auto sparse = pool->SlabToEmpty();
  ASSERT_TRUE(sparse.has_value());
  EXPECT_EQ(*sparse, slots[15].slab);
  for (const auto& [slot, owner] : pool->SlotsOf(*sparse)) {
    const auto to = pool->AllocateBeside(*sparse, owner);
    ASSERT_TRUE(to.has_value());
    EXPECT_NE(to->slab, *sparse);
    pool->Free(slot);
  }
  EXPECT_EQ(pool->bytes_in_use(), SlabPool::kSlabBytes);
  EXPECT_TRUE(pool->Allocate(3, {2, 0}).has_value());
  EXPECT_EQ(pool->SlotsOf(slots[0].slab).size(), 7u);
}

TEST(SlabPool, OthersCanReadAndNotChangeASharedOne) {
  auto pool = MakePool(2, true);
  ASSERT_TRUE(pool->Allocate(5, {1, 0}).has_value());
  const auto slot = pool->Allocate(5, {1, 1});
  ASSERT_TRUE(slot.has_value());
  memset(pool->Memory(*slot).data(), 9, 5 * kPageSize);
  void* view = mmap(nullptr, pool->budget_bytes(), PROT_READ, MAP_SHARED, pool->file(), 0);
  ASSERT_NE(view, MAP_FAILED);
  const uint64_t offset = pool->OffsetOf(pool->Memory(*slot).data());
  EXPECT_EQ(static_cast<const char*>(view)[offset], 9);
  EXPECT_EQ(static_cast<const char*>(view)[offset + 5 * kPageSize - 1], 9);
  munmap(view, pool->budget_bytes());
  EXPECT_EQ(mmap(nullptr, kPageSize, PROT_WRITE, MAP_SHARED, pool->file(), 0), MAP_FAILED);
  EXPECT_EQ(MakePool(1)->file(), -1);
}

}  // namespace
}  // namespace rekindle::restore
