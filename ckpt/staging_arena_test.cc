#include "ckpt/staging_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = StagingArena::kBlockBytes;
using Block = absl::Span<std::byte>;

// A file system of `bytes` that goes with this object.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) : folder_(TemporaryDirectory::Make("/tmp", "rk_arena_test.").value()) {
    std::string size = "size=" + std::to_string(bytes);
    mounted_ = ::mount("none", path().c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
  bool mounted_ = false;
};

// An ext4 of 64 MiB whose device takes no more than `bytes`, as thin-provisioned storage that is full, and
// says so only when it is written to.
class OverpromisedDisk {
 public:
  explicit OverpromisedDisk(uint64_t bytes) : backing_(bytes) {
    if (!backing_.mounted() || !MakeDirectories(path()).ok()) return;
    const std::string image = backing_.path() + "/image";
    mounted_ = Run("truncate -s 64M " + image) && Run("mkfs.ext4 -q -F -O ^has_journal " + image) &&
               Run("mount -o loop,errors=continue " + image + " " + path());
  }
  ~OverpromisedDisk() {
    if (mounted_) Run("umount " + path());
  }
  bool mounted() const { return mounted_; }
  std::string path() const { return backing_.path() + "/mounted"; }
  void WriteBack() const {
    UniqueFd folder = OpenFile(path(), O_RDONLY | O_DIRECTORY).value();
    (void)::syncfs(folder.get());
  }

 private:
  static bool Run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  SmallDisk backing_;
  bool mounted_ = false;
};

// This process's while it lives.
class LimitOf {
 public:
  LimitOf(__rlimit_resource what, uint64_t bytes) : what_(what) {
    ::getrlimit(what, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    set_ = ::setrlimit(what, &limit) == 0;
    EXPECT_TRUE(set_);
  }
  ~LimitOf() {
    if (set_) ::setrlimit(what_, &before_);
  }
  LimitOf(const LimitOf&) = delete;
  LimitOf& operator=(const LimitOf&) = delete;

 private:
  const __rlimit_resource what_;
  rlimit before_ = {};
  bool set_ = false;
};

// What limits count: of addresses (1), or of memory that is this process's own and may be written (6).
uint64_t TakenBytes(size_t column) {
  const std::vector<std::string> words = absl::StrSplit(ReadFile("/proc/self/statm").value(), ' ');
  uint64_t pages = 0;
  EXPECT_TRUE(absl::SimpleAtoi(words[column - 1], &pages));
  return pages * 4096;
}

class StagingArenaTest : public testing::Test {
 protected:
  std::unique_ptr<StagingArena> Make(uint64_t expected, uint64_t budget) {
    return StagingArena::Create(expected, budget, folder_.path()).value();
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_arena_test.").value();
};

size_t ResidentPages(Block block) {
  std::vector<unsigned char> pages(block.size() / 4096);
  if (::mincore(block.data(), block.size(), pages.data()) != 0) return 0;
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](auto page) { return page & 1; }));
}

TEST_F(StagingArenaTest, ExpectedRoomIsTouchedBeforehandAndTheRestIsNot) {
  auto arena = Make(2 * kBlock, 4 * kBlock);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(ResidentPages(*arena->NextBlock()), kBlock / 4096) << i;
  EXPECT_EQ(ResidentPages(*arena->NextBlock()), 0u);
}

TEST_F(StagingArenaTest, LargeRoomIsTouchedWhole) {
  // Several threads touch it, of which one has less to do.
  for (const uint64_t blocks : {7, 4 * 40 + 3}) {
    auto arena = Make(blocks * kBlock, blocks * kBlock);
    for (size_t i = 0; i < blocks; ++i) EXPECT_EQ(ResidentPages(*arena->NextBlock()), kBlock / 4096) << i;
  }
}

TEST_F(StagingArenaTest, GrowsBeyondWhatWasExpectedWithoutSpilling) {
  auto arena = Make(kBlock, 8 * kBlock);
  std::byte* next = nullptr;
  for (int i = 0; i < 8; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_EQ(block->size(), kBlock);
    if (next) {
      EXPECT_EQ(block->data(), next);
    }
    next = block->data() + block->size();
    std::memset(block->data(), i, block->size());
  }
  EXPECT_EQ(arena->spilled_bytes(), 0u);
}

TEST_F(StagingArenaTest, TakesNoPromiseOfMemoryForWhatNobodyUses) {
  // As vm.overcommit_memory=2 does, this limit counts all memory that is private and may be written.
  const LimitOf limited(RLIMIT_DATA, TakenBytes(6) + 40 * kBlock);
  auto arena = Make(2 * kBlock, 256 * kBlock);
  for (int i = 0; i < 30; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), i, block->size());
  }
  EXPECT_EQ(arena->spilled_bytes(), 0u) << arena->how_to_spill_less();
  // To the last promise, and then into the file.
  for (int i = 30; i < 42; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), i, block->size());
  }
  EXPECT_GT(arena->spilled_bytes(), 0u);
  EXPECT_THAT(arena->how_to_spill_less(), HasSubstr("vm.overcommit_memory"));
}

TEST_F(StagingArenaTest, WhereNotEvenWhatIsExpectedIsPromisedTheRestSpills) {
  const LimitOf limited(RLIMIT_DATA, TakenBytes(6) + 10 * kBlock);
  auto arena = Make(64 * kBlock, 64 * kBlock);
  for (int i = 0; i < 64; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), i, block->size());
  }
  EXPECT_GE(arena->spilled_bytes(), 54 * kBlock);
  EXPECT_LE(arena->spilled_bytes(), 60 * kBlock);
}

TEST_F(StagingArenaTest, WhereAddressesAreShortItLeavesSomeToOthers) {
  const uint64_t had = TakenBytes(1);
  {
    const LimitOf limited(RLIMIT_AS, had + 256 * kBlock);
    auto arena = Make(2 * kBlock, 1024 * kBlock);
    void* others = ::mmap(nullptr, 120 * kBlock, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(others, MAP_FAILED);
    ::munmap(others, 120 * kBlock);
    for (int i = 0; i < 120; ++i) ASSERT_TRUE(arena->NextBlock().ok());
    EXPECT_EQ(arena->spilled_bytes(), 0u) << arena->how_to_spill_less();
    for (int i = 120; i < 140; ++i) ASSERT_TRUE(arena->NextBlock().ok());
    EXPECT_GT(arena->spilled_bytes(), 0u);
    EXPECT_THAT(arena->how_to_spill_less(), HasSubstr("ulimit -v"));
  }
  // Too few for anything but the file.
  const LimitOf limited(RLIMIT_AS, had + 64 * kBlock);
  auto arena = Make(2 * kBlock, 1024 * kBlock);
  ASSERT_TRUE(arena->NextBlock().ok());
  EXPECT_EQ(arena->spilled_bytes(), kBlock);
  absl::Status last;
  while (last.ok()) last = arena->NextBlock().status();
  EXPECT_THAT(std::string(last.message()), HasSubstr("ulimit -v"));
}

TEST_F(StagingArenaTest, WhatIsKeptStaysUsable) {
  KeptStaging kept;
  auto arena = StagingArena::Create(kBlock, 64 * kBlock, folder_.path(), &kept).value();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(arena->NextBlock().ok());
  arena.reset();
  arena = StagingArena::Create(24 * kBlock, 64 * kBlock, folder_.path(), &kept).value();
  for (int i = 0; i < 40; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), i, block->size());
  }
  EXPECT_EQ(arena->spilled_bytes(), 0u);
}

TEST_F(StagingArenaTest, ChildrenHaveNoneOfIt) {
  auto arena = Make(kBlock, 4 * kBlock);
  const Block block = *arena->NextBlock();
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char page = 0;
    ::_exit(::mincore(block.data(), 4096, &page) != 0 && errno == ENOMEM ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(StagingArenaTest, SpillsPastTheBudgetAndLeavesNoFile) {
  auto arena = Make(8 * kBlock, 2 * kBlock);
  std::vector<Block> blocks;
  for (int i = 0; i < 5; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), 'a' + i, block->size());
    blocks.push_back(*block);
  }
  EXPECT_EQ(arena->spilled_bytes(), 3 * kBlock);
  for (int i = 0; i < 5; ++i) {
    std::byte expected{static_cast<unsigned char>('a' + i)};
    EXPECT_TRUE(std::all_of(blocks[i].begin(), blocks[i].end(), [&](std::byte byte) {
      return byte == expected;
    })) << i;
  }
  EXPECT_TRUE(ListDirectory(folder_.path())->empty());
}

TEST_F(StagingArenaTest, WhatOneLeavesIsThereForTheNext) {
  KeptStaging kept;
  auto make = [&](uint64_t expected, uint64_t budget) {
    return StagingArena::Create(expected, budget, folder_.path(), &kept).value();
  };
  auto arena = make(2 * kBlock, 4 * kBlock);
  EXPECT_TRUE(kept.empty());
  std::vector<std::byte*> before;
  for (int i = 0; i < 3; ++i) before.push_back(arena->NextBlock()->data());
  arena.reset();
  EXPECT_FALSE(kept.empty());

  // The same pages, those beyond what was expected as well, from the beginning on.
  arena = make(3 * kBlock, 3 * kBlock);
  EXPECT_TRUE(kept.empty());
  for (int i = 0; i < 3; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_EQ(block->data(), before[i]);
    EXPECT_EQ(ResidentPages(*block), kBlock / 4096) << i;
    std::memset(block->data(), i + 1, block->size());
  }
  EXPECT_EQ(arena->spilled_bytes(), 0u);
  EXPECT_TRUE(arena->NextBlock().ok());
  EXPECT_EQ(arena->spilled_bytes(), kBlock) << "its own budget counts";
  arena.reset();

  // A job that has outgrown it.
  arena = make(6 * kBlock, 6 * kBlock);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(ResidentPages(*arena->NextBlock()), kBlock / 4096) << i;
  arena.reset();
  EXPECT_FALSE(kept.empty());
  kept.Drop();
  EXPECT_TRUE(kept.empty());
}

TEST_F(StagingArenaTest, WhatTheKernelTookBackIsMadeAgain) {
  KeptStaging kept;
  auto arena = StagingArena::Create(2 * kBlock, 2 * kBlock, folder_.path(), &kept).value();
  Block block = *arena->NextBlock();
  std::memset(block.data(), 7, block.size());
  arena.reset();
  // As under memory pressure.
  ASSERT_EQ(::madvise(block.data(), block.size(), MADV_DONTNEED), 0);
  arena = StagingArena::Create(2 * kBlock, 2 * kBlock, folder_.path(), &kept).value();
  Block again = *arena->NextBlock();
  EXPECT_EQ(again.data(), block.data());
  EXPECT_EQ(ResidentPages(again), kBlock / 4096);
}

TEST_F(StagingArenaTest, WithoutABudgetAllOfItSpills) {
  auto arena = Make(4 * kBlock, 0);
  auto block = arena->NextBlock();
  ASSERT_TRUE(block.ok()) << block.status();
  std::memset(block->data(), 1, block->size());
  EXPECT_EQ(arena->spilled_bytes(), kBlock);
}

TEST_F(StagingArenaTest, FullDiskIsAnErrorThatNamesTheFolderAndTheCure) {
  SmallDisk disk(kBlock + kBlock / 2);
  ASSERT_TRUE(disk.mounted());
  auto arena = *StagingArena::Create(kBlock, kBlock, disk.path());
  ASSERT_TRUE(arena->NextBlock().ok());
  auto spilled = arena->NextBlock();
  ASSERT_TRUE(spilled.ok()) << spilled.status();
  std::memset(spilled->data(), 1, spilled->size());
  absl::Status status = arena->NextBlock().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(disk.path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--staging-memory"));
  EXPECT_EQ(arena->spilled_bytes(), kBlock);
}

TEST_F(StagingArenaTest, WhatADiskCouldNotTakeIsNotTrusted) {
  OverpromisedDisk disk(2 * kBlock);
  if (!disk.mounted()) GTEST_SKIP() << "loop devices can't be mounted here";
  auto arena = StagingArena::Create(kBlock, kBlock, disk.path()).value();
  EXPECT_TRUE(arena->CheckSpilled().ok()) << "nothing was spilled";
  for (int i = 0; i < 8; ++i) {
    auto block = arena->NextBlock();
    ASSERT_TRUE(block.ok()) << block.status();
    std::memset(block->data(), 'x', block->size());
  }
  EXPECT_EQ(arena->spilled_bytes(), 7 * kBlock);
  disk.WriteBack();
  const absl::Status lost = arena->CheckSpilled();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr(disk.path()));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("--staging-memory"));
}

TEST_F(StagingArenaTest, FolderThatCantBeUsedIsNamed) {
  std::string absent = folder_.path() + "/absent";
  auto arena = *StagingArena::Create(kBlock, kBlock, absent);
  EXPECT_TRUE(arena->NextBlock().ok());
  absl::Status status = arena->NextBlock().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(absent));
  EXPECT_THAT(std::string(status.message()), HasSubstr("memory budget"));
}

TEST_F(StagingArenaTest, ReadOnlyFileSystemIsNamed) {
  SmallDisk disk(kBlock);
  ASSERT_TRUE(disk.mounted());
  ASSERT_EQ(::mount("none", disk.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr), 0);
  auto arena = *StagingArena::Create(0, 0, disk.path());
  absl::Status status = arena->NextBlock().status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(disk.path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Read-only"));
}

TEST_F(StagingArenaTest, WorksWhereTheKernelGivesNoHugePages) {
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  auto arena = Make(2 * kBlock, 2 * kBlock);
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
  auto block = arena->NextBlock();
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(ResidentPages(*block), kBlock / 4096);
}

TEST_F(StagingArenaTest, ThreadsGetBlocksOfTheirOwn) {
  constexpr int kThreads = 4, kBlocksEach = 5;
  auto arena = Make(4 * kBlock, kThreads * kBlocksEach / 2 * kBlock);
  std::vector<std::vector<Block>> blocks(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kBlocksEach; ++i) {
        auto block = arena->NextBlock();
        if (!block.ok()) return;
        // The first and last bytes are enough to see an overlap of blocks of one size.
        std::memset(block->data(), t * kBlocksEach + i, 64);
        std::memset(block->data() + kBlock - 64, t * kBlocksEach + i, 64);
        blocks[t].push_back(*block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    ASSERT_EQ(blocks[t].size(), static_cast<size_t>(kBlocksEach));
    for (int i = 0; i < kBlocksEach; ++i) {
      std::byte expected{static_cast<unsigned char>(t * kBlocksEach + i)};
      EXPECT_EQ(blocks[t][i].front(), expected);
      EXPECT_EQ(blocks[t][i].back(), expected);
    }
  }
  EXPECT_EQ(arena->spilled_bytes(), kThreads * kBlocksEach / 2 * kBlock);
  EXPECT_TRUE(arena->CheckSpilled().ok());
}

}  // namespace
}  // namespace rekindle::ckpt
