// Captures that copy only what was written, with a real CRIU and a real store. In place of the kernel's marks
// stands a comparison of every page: the kernels that these tests run on need not have marks.
#include <fcntl.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "ckpt/capture.h"
#include "ckpt/dirty_pages.h"
#include "ckpt/pagemap_entry.h"
#include "criu/test_support.h"
#include "dedup_store/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using store::StatusOf;

constexpr uint64_t kPage = store::kPageSize;
// The size of the pattern in the memory of criu/test_job.cc.
constexpr uint64_t kPatternBytes = 8u << 20;

bool KernelHasPagemapScan() {
  utsname name;
  int major = 0, minor = 0;
  return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 7);
}

// Private anonymous memory that the process may write.
std::vector<AddressRange> AreasOf(pid_t pid) {
  std::vector<AddressRange> areas;
  for (absl::string_view line :
       absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/maps")).value(), '\n')) {
    AddressRange area;
    char permissions[5] = "";
    unsigned long inode = 0;
    if (std::sscanf(std::string(line).c_str(), "%lx-%lx %4s %*s %*s %lu", &area.start, &area.end, permissions,
                    &inode) == 4 &&
        std::string(permissions) == "rw-p" && inode == 0) {
      areas.push_back(area);
    }
  }
  return areas;
}

std::string MemoryOf(pid_t pid, AddressRange range) {
  UniqueFd memory = OpenFile(absl::StrCat("/proc/", pid, "/mem"), O_RDONLY).value();
  std::string bytes(range.end - range.start, '\0');
  const ssize_t n = ::pread(memory.get(), bytes.data(), bytes.size(), static_cast<off_t>(range.start));
  return n == static_cast<ssize_t>(bytes.size()) ? bytes : "";
}

// Marks a page that is not as it was when the marks were taken off. Frames are the kernel's own.
class ComparedMarks : public PageMarks {
 public:
  absl::StatusOr<uint64_t> StartTicks(pid_t pid) override { return kernel_->StartTicks(pid); }
  absl::StatusOr<size_t> Read(pid_t pid, uint64_t first_page, absl::Span<uint64_t> entries) override {
    auto read = kernel_->Read(pid, first_page, entries);
    if (!read.ok()) return read;
    const std::string now = MemoryOf(pid, {first_page * kPage, (first_page + *read) * kPage});
    for (size_t i = 0; i < *read; ++i) {
      auto before = before_.find({pid, first_page + i});
      const bool same = before != before_.end() && before->second == now.substr(i * kPage, kPage);
      entries[i] = (entries[i] & ~ENTRY_WRITTEN) | (same ? 0 : ENTRY_WRITTEN);
    }
    return read;
  }
  absl::Status Clear(pid_t pid) override {
    for (const AddressRange& area : AreasOf(pid)) {
      const std::string now = MemoryOf(pid, area);
      for (uint64_t at = 0; at < now.size(); at += kPage) {
        before_[{pid, (area.start + at) / kPage}] = now.substr(at, kPage);
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<PageMarks> kernel_ = KernelPageMarks();
  std::map<std::pair<pid_t, uint64_t>, std::string> before_;
};

class CaptureTrackingTest : public store::StoreTest {
 protected:
  void SetUp() override {
    if (!KernelHasPagemapScan()) GTEST_SKIP() << "CRIU copies all of it anyway";
    StoreTest::SetUp();
    Reopen();
    auto criu = criu::FindCriu();
    ASSERT_TRUE(criu.ok()) << criu.status();
    criu_ = *criu;
    ASSERT_TRUE(job_.GoesOn());
    for (const AddressRange& area : AreasOf(job_.pid())) {
      if (area.end - area.start == kPatternBytes) pattern_ = area;
    }
    ASSERT_NE(pattern_.start, 0u);
  }

  // "job:N"
  absl::StatusOr<CaptureResult> Take(int number) {
    CaptureOptions options;
    options.pid = job_.pid();
    options.reference = absl::StrCat("job:", number);
    options.dirty_pages = &dirty_pages_;
    options.runtime_directory = job_.folder() + "/run";
    options.spill_directory = folder_->path();
    return Capture(*store_, criu_, nullptr, options, nullptr, nullptr);
  }

  // Changes that many words of as many pages that lie apart, but no word that the job looks at.
  void Change(int pages, uint64_t value) {
    for (int i = 0; i < pages; ++i) {
      const uint64_t address = pattern_.start + static_cast<uint64_t>(i) * 97 * kPage + 8;
      iovec from{&value, sizeof value}, to{reinterpret_cast<void*>(address), sizeof value};
      ASSERT_EQ(::process_vm_writev(job_.pid(), &from, 1, &to, 1, 0), static_cast<ssize_t>(sizeof value));
    }
  }

  // Nobody but the test changes the pattern, so the living process still has what was captured.
  void ExpectPatternIn(const std::string& reference) {
    auto image = store_->OpenImage(reference);
    RK_ASSERT_OK(image);
    std::string stored(kPatternBytes, '!');
    RK_ASSERT_OK((*image)->ReadPages(absl::StrCat("mem/", job_.pid()), pattern_.start,
                                     {reinterpret_cast<std::byte*>(stored.data()), stored.size()}));
    EXPECT_TRUE(stored == MemoryOf(job_.pid(), pattern_)) << reference;
  }

  criu::Installation criu_;
  criu::TestJob job_;
  AddressRange pattern_;
  DirtyPages dirty_pages_{std::make_unique<ComparedMarks>()};
};

TEST_F(CaptureTrackingTest, OnlyWhatWasWrittenIsCopied) {
  constexpr int kChanged = 12;
  // The first has no parent; of the second it is known that little changes, so the third tracks.
  for (int number : {1, 2, 3}) {
    auto taken = Take(number);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->unchanged_bytes, 0u) << number;
  }
  for (int number : {4, 5}) {
    Change(kChanged, static_cast<uint64_t>(number));
    auto taken = Take(number);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_GE(taken->unchanged_bytes, kPatternBytes - kChanged * kPage);
    EXPECT_LT(taken->unchanged_bytes, kPatternBytes + (1u << 20));
    EXPECT_GE(taken->image.stats.parent_bytes, taken->unchanged_bytes);
    ExpectPatternIn(absl::StrCat("job:", number));
  }
  EXPECT_TRUE(job_.GoesOn());

  // Each stands alone.
  for (int number : {1, 2, 3, 4}) RK_ASSERT_OK(store_->Remove(absl::StrCat("job:", number)));
  RK_ASSERT_OK(store_->Gc({}));
  Reopen();
  ExpectPatternIn("job:5");
  ExpectWhole();
}

TEST_F(CaptureTrackingTest, WithoutTheImageThatWasTrackedAllIsCopied) {
  for (int number : {1, 2, 3}) RK_ASSERT_OK(Take(number).status());
  RK_ASSERT_OK(store_->Remove("job:3"));
  Change(5, 4);
  auto taken = Take(4);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->unchanged_bytes, 0u);
  ExpectPatternIn("job:4");
  // That one tracks again.
  Change(5, 5);
  taken = Take(5);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_GE(taken->unchanged_bytes, kPatternBytes - 5 * kPage);
  ExpectPatternIn("job:5");
}

TEST_F(CaptureTrackingTest, ImageThatIsNotCommittedIsNoParent) {
  for (int number : {1, 2, 3}) RK_ASSERT_OK(Take(number).status());
  // Frozen, tracked, and then refused: nothing of it is there, and the marks are gone.
  class Refuses : public CaptureGate {
   public:
    absl::Status BeforeFreeze() override { return absl::OkStatus(); }
    absl::Status OnFrozen() override { return absl::OkStatus(); }
    absl::Status BeforeCommit() override { return absl::AbortedError("the others gave up"); }
  } gate;
  CaptureOptions options;
  options.pid = job_.pid();
  options.reference = "job:4";
  options.dirty_pages = &dirty_pages_;
  options.gate = &gate;
  options.runtime_directory = job_.folder() + "/run";
  options.spill_directory = folder_->path();
  Change(5, 4);
  EXPECT_TRUE(absl::IsAborted(Capture(*store_, criu_, nullptr, options, nullptr, nullptr).status()));
  auto taken = Take(5);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->unchanged_bytes, 0u);
  EXPECT_EQ(taken->image.parent_digest, store_->Find("job:3")->digest);
  ExpectPatternIn("job:5");
}

}  // namespace
}  // namespace rekindle::ckpt
