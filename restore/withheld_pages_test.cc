#include "restore/withheld_pages.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <map>
#include <random>

#include "base/test_child.h"
#include "criu/test_images.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::restore {
namespace {

using store::kMiB;
using store::kPageSize;
using store::StatusOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBase = 0x7f0000000000;  // a multiple of the size of a huge page

criu::PagemapEntry Present(uint64_t address, uint64_t bytes) {
  return {address, bytes / kPageSize, criu::kPagePresent, 0};
}

TaskMemory Task(pid_t pid, std::vector<criu::Vma> areas, std::vector<criu::PagemapEntry> entries) {
  TaskMemory task;
  task.pid = pid;
  task.object.set_object(absl::StrCat("mem/", pid));
  task.areas = std::move(areas);
  task.pagemap.pages_id = static_cast<uint32_t>(pid);
  task.pagemap.entries = std::move(entries);
  return task;
}

std::vector<std::string> Text(const std::vector<store::PageRun>& ranges) {
  std::vector<std::string> text;
  for (const store::PageRun& range : ranges)
    text.push_back(absl::StrCat(absl::Hex(range.address), "+", range.pages));
  return text;
}

std::vector<std::string> Text(const criu::Pagemap& pagemap) {
  std::vector<std::string> text;
  for (const criu::PagemapEntry& entry : pagemap.entries)
    text.push_back(
        absl::StrCat(absl::Hex(entry.address), "+", entry.pages, entry.flags == 0 ? " absent" : ""));
  return text;
}

TEST(ChooseWithheldTest, LargeAnonymousMemoryIsTakenOutOfItsPagemap) {
  criu::Vma code = criu::AnonymousArea(kBase - 64 * kMiB, 2 * kMiB);
  code.status = 1 | 1u << 6;  // a private mapping of a file
  code.flags = MAP_PRIVATE;
  auto chosen = ChooseWithheld({Task(5, {code, criu::AnonymousArea(kBase, 8 * kMiB)},
                                     {Present(code.start, 2 * kMiB),
                                      Present(kBase, 4 * kMiB),
                                      {kBase + 4 * kMiB, 10, 0, 0},
                                      Present(kBase + 6 * kMiB, kMiB)})});
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_EQ(chosen[0].pid, 5);
  EXPECT_EQ(chosen[0].object, "mem/5");
  EXPECT_THAT(Text(chosen[0].ranges), ElementsAre("7f0000000000+1024", "7f0000600000+256"));
  EXPECT_EQ(chosen[0].bytes, 5 * kMiB);
  EXPECT_EQ(chosen[0].kept.pages_id, 5u);
  EXPECT_THAT(Text(chosen[0].kept), ElementsAre("7efffc000000+512"));
}

TEST(ChooseWithheldTest, EntriesThatSpanAreasAreCut) {
  // One entry over a small area, a large one and another small one that lie side by side.
  criu::Vma before = criu::AnonymousArea(kBase - kPageSize, kPageSize),
            large = criu::AnonymousArea(kBase, 2 * kMiB), after = criu::AnonymousArea(large.end, kPageSize);
  before.prot = after.prot = PROT_READ;
  auto chosen =
      ChooseWithheld({Task(5, {before, large, after}, {Present(before.start, 2 * kMiB + 2 * kPageSize)})});
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_THAT(Text(chosen[0].ranges), ElementsAre("7f0000000000+512"));
  EXPECT_THAT(Text(chosen[0].kept), ElementsAre("7efffffff000+1", "7f0000200000+1"));
}

TEST(ChooseWithheldTest, WhatMustBeLeftToCriuIsLeft) {
  auto refused = [](auto change) {
    criu::Vma area = criu::AnonymousArea(kBase, 4 * kMiB);
    change(&area);
    return ChooseWithheld({Task(5, {area}, {Present(kBase, 4 * kMiB)})}).empty();
  };
  EXPECT_FALSE(refused([](criu::Vma*) {}));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->prot = PROT_READ; }));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->flags |= MAP_GROWSDOWN; }));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->flags |= MAP_LOCKED; }));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->flags |= MAP_HUGETLB; }));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->flags = MAP_SHARED | MAP_ANONYMOUS; }));
  EXPECT_TRUE(refused([](criu::Vma* area) { area->status |= 1u << 3; }));  // the kernel's vdso
}

TEST(ChooseWithheldTest, LittleMemoryIsLeftToCriu) {
  criu::Vma area = criu::AnonymousArea(kBase, 64 * kMiB);
  EXPECT_THAT(ChooseWithheld({Task(5, {area}, {Present(kBase, kMiB - kPageSize)})}), IsEmpty());
  EXPECT_THAT(ChooseWithheld({Task(5, {area}, {Present(kBase, kMiB)})}), SizeIs(1));
  EXPECT_THAT(ChooseWithheld({Task(5, {}, {})}), IsEmpty());
}

TEST(ChooseWithheldTest, MemoryThatMayBeSharedByForkIsLeftToCriu) {
  criu::Vma common = criu::AnonymousArea(kBase, 4 * kMiB), own = criu::AnonymousArea(2 * kBase, 4 * kMiB),
            overlapping = criu::AnonymousArea(kBase + 3 * kMiB, 4 * kMiB);
  auto chosen =
      ChooseWithheld({Task(5, {common, own}, {Present(kBase, 4 * kMiB), Present(2 * kBase, 4 * kMiB)}),
                      Task(6, {overlapping}, {Present(overlapping.start, 4 * kMiB)})});
  ASSERT_THAT(chosen, SizeIs(1));
  EXPECT_EQ(chosen[0].pid, 5);
  EXPECT_THAT(Text(chosen[0].ranges), ElementsAre("fe0000000000+1024"));
  EXPECT_THAT(Text(chosen[0].kept), ElementsAre("7f0000000000+1024"));
}

// Areas of several tasks at random places: against the plain question, asked of each pair.
TEST(ChooseWithheldTest, WhatAnyOtherTaskHasIsLeftToCriu) {
  std::mt19937 random(5);
  size_t withheld = 0, left = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<TaskMemory> tasks;
    for (pid_t pid = 10; pid < 15; ++pid) {
      std::vector<criu::Vma> areas;
      std::vector<criu::PagemapEntry> entries;
      for (uint64_t at = random() % 4; at < 40; at += 1 + random() % 30) {
        const uint64_t bytes = (1 + random() % 3) * kMiB;
        areas.push_back(criu::AnonymousArea(kBase + at * kMiB, bytes));
        entries.push_back(Present(areas.back().start, bytes));
        at += bytes / kMiB;
      }
      tasks.push_back(Task(pid, std::move(areas), std::move(entries)));
    }
    std::map<pid_t, std::vector<std::string>> expected, chosen;
    for (const TaskMemory& task : tasks) {
      for (const criu::Vma& area : task.areas) {
        bool shared = false;
        for (const TaskMemory& other : tasks) {
          for (const criu::Vma& its : other.areas)
            shared |= other.pid != task.pid && its.start < area.end && area.start < its.end;
        }
        ++(shared ? left : withheld);
        if (!shared)
          expected[task.pid].push_back(
              absl::StrCat(absl::Hex(area.start), "+", (area.end - area.start) / kPageSize));
      }
    }
    for (const WithheldTask& task : ChooseWithheld(tasks)) chosen[task.pid] = Text(task.ranges);
    EXPECT_EQ(chosen, expected) << round;
  }
  EXPECT_GT(withheld, 100u);
  EXPECT_GT(left, 100u);
}

TEST(ChooseWithheldTest, HugePagesWhereTheJobAllowsThem) {
  auto allowed = [](bool disabled, uint64_t madv) {
    criu::Vma area = criu::AnonymousArea(kBase, 4 * kMiB);
    area.madv = madv;
    TaskMemory task = Task(5, {area}, {Present(kBase, 4 * kMiB)});
    task.huge_pages_disabled = disabled;
    auto chosen = ChooseWithheld({task});
    return chosen.size() == 1 && chosen[0].huge_allowed.size() == 1 &&
           chosen[0].huge_allowed[0].begin == kBase && chosen[0].huge_allowed[0].end == kBase + 4 * kMiB;
  };
  EXPECT_TRUE(allowed(false, 0));
  EXPECT_FALSE(allowed(true, 0));
  EXPECT_FALSE(allowed(false, 1ull << MADV_NOHUGEPAGE));
  // The kernel makes them by itself where the job has asked for them.
  EXPECT_FALSE(allowed(false, 1ull << MADV_HUGEPAGE));
}

// An image with one task's memory, and a living process that has room for it.
class FillWithheldTest : public store::StoreTest {
 protected:
  static constexpr size_t kPages = 700;

  void SetUp() override {
    StoreTest::SetUp();
    Reopen();
    content_ = store::MakePages(kPages, 7);
    memset(content_.data() + 100 * kPageSize, 0, 50 * kPageSize);  // the store keeps no zero pages
    // The child inherits the mapping at the same address.
    room_ = ::mmap(nullptr, kPages * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(room_, MAP_FAILED);
    store::TestImage image;
    image.objects["mem/5"][address()] = content_;
    RK_ASSERT_OK(image.Commit(*store_, "job:1"));
    auto reader = store_->OpenImage("job:1");
    RK_ASSERT_OK(reader);
    image_ = *std::move(reader);
  }
  void TearDown() override { ::munmap(room_, kPages * kPageSize); }

  uint64_t address() const { return reinterpret_cast<uint64_t>(room_); }

  static WithheldTask Task(pid_t pid, std::vector<store::PageRun> ranges) {
    WithheldTask task;
    task.pid = pid;
    task.object = "mem/5";
    task.ranges = std::move(ranges);
    return task;
  }

  std::string MemoryOf(pid_t pid) const {
    std::string bytes(kPages * kPageSize, '?');
    iovec local{bytes.data(), bytes.size()}, remote{room_, bytes.size()};
    return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes.size()) ? bytes
                                                                                                   : "";
  }

  void* room_ = MAP_FAILED;
  std::string content_;
  std::unique_ptr<store::ImageReader> image_;
};

TEST_F(FillWithheldTest, PagesArriveInTheProcess) {
  TestChild child;
  ASSERT_TRUE(child.prepared() && child.Stop());
  std::atomic<uint64_t> done{0};
  absl::Status status =
      FillWithheld(*image_, nullptr, {Task(child.pid(), {{address(), kPages, false}})}, &done);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(MemoryOf(child.pid()) == content_);
  EXPECT_EQ(done, (kPages - 50) * kPageSize);
}

TEST_F(FillWithheldTest, OnlyTheRangesAreWritten) {
  TestChild child([&] { return memset(room_, 'o', kPages * kPageSize) == room_; });
  ASSERT_TRUE(child.prepared());
  std::atomic<uint64_t> done{0};
  absl::Status status = FillWithheld(
      *image_, nullptr,
      {Task(child.pid(), {{address() + 10 * kPageSize, 20, false}, {address() + 600 * kPageSize, 1, false}})},
      &done);
  ASSERT_TRUE(status.ok()) << status;
  std::string expected(kPages * kPageSize, 'o');
  expected.replace(10 * kPageSize, 20 * kPageSize, content_, 10 * kPageSize, 20 * kPageSize);
  expected.replace(600 * kPageSize, kPageSize, content_, 600 * kPageSize, kPageSize);
  EXPECT_TRUE(MemoryOf(child.pid()) == expected);
  EXPECT_EQ(done, 21 * kPageSize);
}

TEST_F(FillWithheldTest, WhatIsInMemoryIsNotRead) {
  // Another content, so that it can be told where a page came from. The kernel has taken back one page, which
  // is not the first of what is looked at together.
  constexpr size_t kFirst = 200, kCount = 300;
  const size_t gone = (address() / kPageSize + kFirst + 10) % 512 == 0 ? 11 : 10;
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kCount * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  const std::string other = store::MakePages(kCount, 8);
  memcpy(memory, other.data(), other.size());
  ASSERT_EQ(::madvise(memory + gone * kPageSize, kPageSize, MADV_DONTNEED), 0);
  store::ImageInMemory in_memory;
  in_memory.digest = image_->info().digest;
  in_memory.objects["mem/5"] = {{address() + kFirst * kPageSize, {memory, kCount * kPageSize}}};
  std::string mixed = content_;
  mixed.replace(kFirst * kPageSize, other.size(), other);
  mixed.replace((kFirst + gone) * kPageSize, kPageSize, content_, (kFirst + gone) * kPageSize, kPageSize);
  for (const bool same_image : {true, false}) {
    TestChild child;
    ASSERT_TRUE(child.prepared() && child.Stop());
    std::atomic<uint64_t> done{0};
    absl::Status status =
        FillWithheld(*image_, &in_memory, {Task(child.pid(), {{address(), kPages, false}})}, &done);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(MemoryOf(child.pid()) == (same_image ? mixed : content_));
    EXPECT_EQ(done, (kPages - 50) * kPageSize);
    in_memory.digest = "another";
  }
  ::munmap(memory, kCount * kPageSize);
}

TEST_F(FillWithheldTest, ProcessThatIsGoneOrHasNoRoomIsNamed) {
  TestChild no_room([&] { return ::munmap(room_, kPages * kPageSize) == 0; });
  ASSERT_TRUE(no_room.prepared());
  std::atomic<uint64_t> done{0};
  std::vector<store::PageRun> range = {{address(), 1, false}};
  absl::Status status = FillWithheld(*image_, nullptr, {Task(no_room.pid(), range)}, &done);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("process ", no_room.pid(), " at ", absl::Hex(address()))));
  pid_t gone = no_room.pid();
  no_room.Kill();
  no_room.Reap();
  EXPECT_EQ(FillWithheld(*image_, nullptr, {Task(gone, range)}, &done).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(done, 0u);
}

}  // namespace
}  // namespace rekindle::restore
