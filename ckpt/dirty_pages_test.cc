#include "ckpt/dirty_pages.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/test_child.h"
#include "ckpt/pagemap_entry.h"
#include "criu/environment.h"
#include "dedup_store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using store::kPageSize;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBase = 0x7f0000000;  // number of the first recorded page
constexpr uint64_t kPages = 256;
constexpr pid_t kJob = 4321;
constexpr char kImage[] = "sha256:1";

// A page that is in memory and mapped nowhere else (bit 56), in this frame.
constexpr uint64_t InFrame(uint64_t frame) { return uint64_t{0x8100} << 48 | frame; }

AddressRange Pages(uint64_t first, uint64_t end) {
  return {(kBase + first) * kPageSize, (kBase + end) * kPageSize};
}
const AddressRange kAll = Pages(0, kPages);

// Plays what a kernel was recorded to say: entries of pagemaps, from kBase on.
class RecordedKernel : public PageMarks {
 public:
  struct Process {
    uint64_t start_ticks = 77;
    std::vector<uint64_t> pagemap;
  };

  absl::StatusOr<uint64_t> StartTicks(pid_t pid) override {
    ++asked;
    if (!processes.contains(pid)) return absl::NotFoundError("it has ended");
    return processes[pid].start_ticks;
  }
  absl::StatusOr<size_t> Read(pid_t pid, uint64_t first_page, absl::Span<uint64_t> entries) override {
    ++asked;
    if (!processes.contains(pid)) return absl::NotFoundError("it has ended");
    const std::vector<uint64_t>& pagemap = processes[pid].pagemap;
    if (first_page < kBase || first_page - kBase > pagemap.size()) return 0;
    const size_t n = std::min<size_t>(entries.size(), pagemap.size() - (first_page - kBase));
    std::copy_n(pagemap.begin() + static_cast<ptrdiff_t>(first_page - kBase), n, entries.begin());
    return n;
  }
  absl::Status Clear(pid_t pid) override {
    if (refuses) return absl::PermissionDeniedError("clear_refs is not for you");
    for (uint64_t& entry : processes[pid].pagemap) entry &= ~ENTRY_WRITTEN;
    return absl::OkStatus();
  }

  std::map<pid_t, Process> processes;
  bool refuses = false;
  int asked = 0;
};

class DirtyPagesTest : public testing::Test {
 protected:
  DirtyPagesTest() {
    for (uint64_t i = 0; i < kPages; ++i) pagemap().push_back(InFrame(0x1000 + i) | ENTRY_WRITTEN);
  }

  std::vector<uint64_t>& pagemap() { return kernel_->processes[kJob].pagemap; }
  void ArmAndCommit() { pages_.Committed(pages_.Arm({{kJob, {kAll}}}), kImage); }
  std::vector<AddressRange> Clean() { return pages_.CleanRanges(kJob, kImage, kAll); }

  RecordedKernel* const kernel_ = new RecordedKernel;
  DirtyPages pages_{std::unique_ptr<PageMarks>(kernel_)};
};

TEST_F(DirtyPagesTest, WhatIsNotMarkedIsClean) {
  ArmAndCommit();
  EXPECT_THAT(Clean(), ElementsAre(kAll));
  pagemap()[0] |= ENTRY_WRITTEN;
  pagemap()[100] |= ENTRY_WRITTEN;
  pagemap()[101] |= ENTRY_WRITTEN;
  EXPECT_THAT(Clean(), ElementsAre(Pages(1, 100), Pages(102, kPages)));
  EXPECT_THAT(pages_.CleanRanges(kJob, kImage, Pages(50, 130)), ElementsAre(Pages(50, 100), Pages(102, 130)));
  // Too short to be worth a piece of its own.
  pagemap()[120] |= ENTRY_WRITTEN;
  pagemap()[136] |= ENTRY_WRITTEN;
  EXPECT_THAT(Clean(), ElementsAre(Pages(1, 100), Pages(102, 120), Pages(137, kPages)));
}

TEST_F(DirtyPagesTest, OnlyMemoryThatWasCopiedIsClean) {
  pages_.Committed(pages_.Arm({{kJob, {Pages(10, 40), Pages(60, 90)}}}), kImage);
  EXPECT_THAT(Clean(), ElementsAre(Pages(10, 40), Pages(60, 90)));
  EXPECT_THAT(pages_.CleanRanges(kJob, kImage, {0, kPageSize}), IsEmpty());
}

TEST_F(DirtyPagesTest, EachStretchOfManyIsFound) {
  std::vector<AddressRange> memory;
  for (uint64_t first = 0; first + 20 < kPages; first += 24) memory.push_back(Pages(first, first + 20));
  pages_.Committed(pages_.Arm({{kJob, {memory.rbegin(), memory.rend()}}}), kImage);
  for (const AddressRange& one : memory) {
    EXPECT_THAT(pages_.CleanRanges(kJob, kImage, one), ElementsAre(one));
    EXPECT_THAT(pages_.CleanRanges(kJob, kImage, {one.start - 4 * kPageSize, one.end + 4 * kPageSize}),
                ElementsAre(one));
  }
  EXPECT_EQ(Clean(), memory);
}

// While the job stands still, of which there may be tens of thousands.
TEST_F(DirtyPagesTest, OfShortStretchesTheKernelIsNotAsked) {
  std::vector<AddressRange> memory;
  for (uint64_t first = 0; first + 15 < kPages; first += 16) memory.push_back(Pages(first, first + 15));
  const uint64_t armed = pages_.Arm({{kJob, memory}});
  EXPECT_EQ(std::exchange(kernel_->asked, 0), 1) << "who the process is";
  pages_.Committed(armed, kImage);
  kernel_->asked = 0;
  for (const AddressRange& one : memory) EXPECT_THAT(pages_.CleanRanges(kJob, kImage, one), IsEmpty());
  EXPECT_EQ(kernel_->asked, 0);
}

TEST_F(DirtyPagesTest, NothingIsCleanUnlessItsImageIsTheParent) {
  const uint64_t first = pages_.Arm({{kJob, {kAll}}});
  EXPECT_THAT(Clean(), IsEmpty()) << "not committed";
  EXPECT_THAT(pages_.CleanRanges(kJob, "", kAll), IsEmpty()) << "no parent";
  pages_.Committed(first, kImage);
  EXPECT_THAT(pages_.CleanRanges(kJob, "sha256:2", kAll), IsEmpty()) << "another parent";
  EXPECT_THAT(Clean(), ElementsAre(kAll));
  // The marks are gone for a second image, which never comes: they say nothing of the first any more.
  const uint64_t second = pages_.Arm({{kJob, {kAll}}});
  EXPECT_THAT(Clean(), IsEmpty());
  pages_.Committed(first, kImage);
  EXPECT_THAT(Clean(), IsEmpty());
  pages_.Committed(second, "sha256:2");
  EXPECT_THAT(Clean(), IsEmpty());
  EXPECT_THAT(pages_.CleanRanges(kJob, "sha256:2", kAll), ElementsAre(kAll));
}

TEST_F(DirtyPagesTest, AnotherProcessIsNotClean) {
  ArmAndCommit();
  kernel_->processes[kJob + 1] = kernel_->processes[kJob];
  EXPECT_THAT(pages_.CleanRanges(kJob + 1, kImage, kAll), IsEmpty()) << "never armed";
  kernel_->processes[kJob].start_ticks = 78;
  EXPECT_THAT(Clean(), IsEmpty()) << "the PID is another's by now";
  kernel_->processes.erase(kJob);
  EXPECT_THAT(Clean(), IsEmpty()) << "it has ended";
}

TEST_F(DirtyPagesTest, PagesThatMovedAreNotClean) {
  pagemap()[20] = 0;                           // not there
  pagemap()[40] = uint64_t{0x4000} << 48 | 5;  // in swap
  pagemap()[60] = InFrame(0);                  // the kernel does not tell
  ArmAndCommit();
  pagemap()[20] = InFrame(0x1000 + 20);
  pagemap()[40] = InFrame(5);
  pagemap()[80] = 0;
  pagemap()[100] = uint64_t{0x4000} << 48 | (0x1000 + 100);
  // As mremap() leaves them: a table of pages of another place, none of which is marked.
  for (uint64_t i = 120; i < 140; ++i) pagemap()[i] = InFrame(0x9000 + i);
  EXPECT_THAT(Clean(), ElementsAre(Pages(0, 20), Pages(21, 40), Pages(41, 60), Pages(61, 80), Pages(81, 100),
                                   Pages(101, 120), Pages(140, kPages)));
}

TEST_F(DirtyPagesTest, WhatCannotBeReadIsNotClean) {
  const std::vector<uint64_t> whole = pagemap();
  pagemap().resize(200);
  ArmAndCommit();
  for (uint64_t i = 200; i < kPages; ++i) pagemap().push_back(whole[i] & ~ENTRY_WRITTEN);
  EXPECT_THAT(Clean(), ElementsAre(Pages(0, 200))) << "the rest was not read when it was armed";
  pagemap().resize(50);
  EXPECT_THAT(Clean(), ElementsAre(Pages(0, 50)));
  pagemap().clear();
  EXPECT_THAT(Clean(), IsEmpty());
}

TEST_F(DirtyPagesTest, ProcessWhoseMarksStayIsNotTracked) {
  ArmAndCommit();
  kernel_->refuses = true;
  testing::internal::CaptureStderr();
  ArmAndCommit();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("clear_refs is not for you"));
  EXPECT_THAT(Clean(), IsEmpty());
}

// A kernel of the kind that a test says, on a page of this process.
class OwnPage : public PageMarks {
 public:
  OwnPage(bool tracks, bool tells_frames) : tracks_(tracks), tells_frames_(tells_frames) {}
  absl::StatusOr<uint64_t> StartTicks(pid_t) override { return 1; }
  absl::StatusOr<size_t> Read(pid_t pid, uint64_t first_page, absl::Span<uint64_t> entries) override {
    EXPECT_EQ(pid, ::getpid());
    const char now = *reinterpret_cast<const volatile char*>(first_page * kPageSize);
    entries[0] = InFrame(tells_frames_ ? 5 : 0) | (tracks_ && now != cleared_at_ ? ENTRY_WRITTEN : 0);
    seen_ = now;
    return 1;
  }
  absl::Status Clear(pid_t) override {
    cleared_at_ = seen_;
    return absl::OkStatus();
  }

 private:
  const bool tracks_, tells_frames_;
  char seen_ = 0, cleared_at_ = 0;
};

TEST(PageMarks, AreTriedBeforeTheyAreTrusted) {
  OwnPage good(true, true), no_marks(false, true), no_frames(true, false);
  EXPECT_TRUE(CheckPageMarks(good).ok()) << CheckPageMarks(good);
  absl::Status status = CheckPageMarks(no_marks);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CONFIG_MEM_SOFT_DIRTY"));
  status = CheckPageMarks(no_frames);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CAP_SYS_ADMIN"));
}

// What follows asks the kernel that the test runs on.
bool DoctorSaysItTracks() {
  for (const criu::EnvironmentCheck& check : criu::CheckEnvironment(absl::NotFoundError("no CRIU"))) {
    if (check.name == "soft_dirty") return check.ok;
  }
  ADD_FAILURE() << "there is no such check";
  return false;
}

TEST(PageMarks, OfThisKernelAreWhatTheDoctorSays) {
  EXPECT_EQ(CheckPageMarks(*KernelPageMarks()).ok(), DoctorSaysItTracks());
  EXPECT_EQ(DirtyPages::Open().ok(), DoctorSaysItTracks());
}

TEST(PageMarks, PagemapOfAProcessIsRead) {
  auto marks = KernelPageMarks();
  EXPECT_GT(marks->StartTicks(::getpid()).value(), 0u);
  std::vector<char> memory(4 * kPageSize, 1);
  uint64_t entries[2] = {};
  const uint64_t page = reinterpret_cast<uintptr_t>(memory.data()) / kPageSize + 1;
  EXPECT_EQ(marks->Read(::getpid(), page, entries).value(), 2u);
  EXPECT_TRUE(entries[0] & ENTRY_PRESENT);
  EXPECT_NE(entries[0] & ENTRY_FRAME, 0u);
  EXPECT_NE(entries[0] & ENTRY_FRAME, entries[1] & ENTRY_FRAME);
  // Behind the end of what a process can have.
  EXPECT_EQ(marks->Read(::getpid(), uint64_t{1} << 52, entries).value_or(0), 0u);
  EXPECT_FALSE(marks->Read(0, page, entries).ok());
}

TEST(DirtyPages, OfALivingProcess) {
  if (!DoctorSaysItTracks()) GTEST_SKIP() << "this kernel does not track written pages";
  std::vector<char> memory((kPages + 1) * kPageSize, 1);
  TestChild child([&] {
    std::fill(memory.begin(), memory.end(), 2);
    return true;
  });
  ASSERT_TRUE(child.prepared() && child.Stop());
  const uint64_t start = (reinterpret_cast<uintptr_t>(memory.data()) + kPageSize - 1) / kPageSize * kPageSize;
  const AddressRange all{start, start + kPages * kPageSize};
  auto pages = DirtyPages::Open();
  ASSERT_TRUE(pages.ok()) << pages.status();
  (*pages)->Committed((*pages)->Arm({{child.pid(), {all}}}), kImage);
  EXPECT_THAT((*pages)->CleanRanges(child.pid(), kImage, all), ElementsAre(all));
  const uint64_t written = start + 50 * kPageSize;
  char byte = 3;
  iovec from{&byte, 1}, to{reinterpret_cast<void*>(written), 1};
  ASSERT_EQ(::process_vm_writev(child.pid(), &from, 1, &to, 1, 0), 1);
  EXPECT_THAT((*pages)->CleanRanges(child.pid(), kImage, all),
              ElementsAre(AddressRange{start, written}, AddressRange{written + kPageSize, all.end}));
}

}  // namespace
}  // namespace rekindle::ckpt
