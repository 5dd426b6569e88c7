#include "ckpt/direct_copy.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_child.h"
#include "base/test_descriptors.h"
#include "dedup_store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using store::kPageSize;
using ::testing::HasSubstr;

constexpr size_t kMemoryBytes = 9u << 20;  // several blocks and slices

// Plays the page filter's part.
class DirectCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = static_cast<char*>(
        ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
    uint64_t word = 1;
    for (size_t i = 0; i < kMemoryBytes; i += sizeof word) {
      word = word * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(memory_ + i, &word, sizeof word);
    }
    content_.assign(memory_, kMemoryBytes);
    arena_ = StagingArena::Create(kMemoryBytes, 64u << 20, folder_.path()).value();
    child_ = std::make_unique<TestChild>();
    ASSERT_TRUE(child_->prepared() && child_->Stop());
    std::memset(memory_, 0, kMemoryBytes);  // ours; the child keeps its own
    auto copy = DirectCopy::Listen(
        folder_.path(), namespaces_, arena_.get(), 2,
        [this](pid_t task, pid_t pid, const AddressRange& range) { return Unchanged(task, pid, range); });
    ASSERT_TRUE(copy.ok()) << copy.status();
    copy_ = *std::move(copy);
  }
  void TearDown() override {
    copy_.reset();
    ::munmap(memory_, kMemoryBytes);
  }

  // What of the range is in unchanged_.
  std::vector<AddressRange> Unchanged(pid_t task, pid_t pid, const AddressRange& range) const {
    EXPECT_EQ(task, child_->pid());
    EXPECT_EQ(pid, child_->pid());
    std::vector<AddressRange> parts;
    for (const AddressRange& same : unchanged_) {
      AddressRange part{std::max(same.start, range.start), std::min(same.end, range.end)};
      if (part.start < part.end) parts.push_back(part);
    }
    return parts;
  }

  UniqueFd Connect() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::string path = absl::StrCat(folder_.path(), "/", PAGE_FILTER_SOCKET);
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  PageFilterRange Range(size_t offset, size_t bytes) const {
    uint64_t start = reinterpret_cast<uint64_t>(memory_) + offset;
    return {static_cast<uint64_t>(child_->pid()), start, start + bytes, 0};
  }
  PageFilterRange Area(size_t offset, size_t bytes) const {
    PageFilterRange area = Range(offset, bytes);
    area.ahead = 1;
    return area;
  }
  static void Send(const UniqueFd& fd, const void* data, size_t bytes) {
    EXPECT_EQ(::send(fd.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }

  TemporaryDirectory folder_ = TemporaryDirectory::Make("/tmp", "rk_direct_copy_test.").value();
  char* memory_ = nullptr;
  std::string content_;
  std::unique_ptr<StagingArena> arena_;
  const criu::JobNamespaces namespaces_{};
  std::unique_ptr<TestChild> child_;
  std::vector<AddressRange> unchanged_;
  std::unique_ptr<DirectCopy> copy_;
};

TEST_F(DirectCopyTest, MemoryIsCopiedAsItWas) {
  UniqueFd filter = Connect();
  // Out of order, one of them in two messages.
  PageFilterRange late = Range(6u << 20, 3u << 20), early = Range(kPageSize, 5u << 20),
                  one = Range(0, kPageSize);
  Send(filter, &late, sizeof late);
  Send(filter, &early, 10);
  Send(filter, reinterpret_cast<const char*>(&early) + 10, sizeof early - 10);
  Send(filter, &one, sizeof one);
  ASSERT_TRUE(copy_->Finish().ok());
  EXPECT_FALSE(copy_->unreadable());
  EXPECT_EQ(copy_->bytes_copied(), (8u << 20) + kPageSize);

  auto copied = copy_->Take();
  ASSERT_EQ(copied.size(), 1u);
  ASSERT_EQ(copied.begin()->first, child_->pid());
  std::string found(kMemoryBytes, 0), expected(kMemoryBytes, 0);
  uint64_t end = 0;
  for (const CopiedRange& range : copied.begin()->second) {
    EXPECT_GE(range.address, end);
    end = range.address + range.bytes.size();
    std::memcpy(found.data() + (range.address - reinterpret_cast<uint64_t>(memory_)), range.bytes.data(),
                range.bytes.size());
  }
  expected.replace(0, kPageSize + (5u << 20), content_, 0, kPageSize + (5u << 20));
  expected.replace(6u << 20, 3u << 20, content_, 6u << 20, 3u << 20);
  EXPECT_TRUE(found == expected);
}

TEST_F(DirectCopyTest, WhatIsNamedTwiceIsCopiedOnce) {
  UniqueFd filter = Connect();
  const PageFilterRange ranges[] = {Range(2 * kPageSize, 2 * kPageSize), Range(2 * kPageSize, 2 * kPageSize),
                                    Range(6 * kPageSize, kPageSize),     Range(0, 9 * kPageSize),
                                    Range(3 * kPageSize, 8 * kPageSize), Range(kPageSize, kPageSize)};
  Send(filter, ranges, sizeof ranges);
  ASSERT_TRUE(copy_->Finish().ok());
  EXPECT_EQ(copy_->bytes_copied(), 11 * kPageSize);
  uint64_t next = reinterpret_cast<uint64_t>(memory_);
  auto copied = copy_->Take();
  for (const CopiedRange& range : copied[child_->pid()]) {
    EXPECT_EQ(range.address, next);
    size_t offset = range.address - reinterpret_cast<uint64_t>(memory_);
    EXPECT_EQ(std::memcmp(range.bytes.data(), content_.data() + offset, range.bytes.size()), 0);
    next += range.bytes.size();
  }
  EXPECT_EQ(next, reinterpret_cast<uint64_t>(memory_) + 11 * kPageSize);
}

TEST_F(DirectCopyTest, WhatIsUnchangedIsNotCopied) {
  const uint64_t start = reinterpret_cast<uint64_t>(memory_);
  unchanged_ = {{start, start + 2 * kPageSize}, {start + 5 * kPageSize, start + 9 * kPageSize}};
  UniqueFd filter = Connect();
  const PageFilterRange ranges[] = {Range(kPageSize, 6 * kPageSize), Range(0, 12 * kPageSize),
                                    Range(20 * kPageSize, 3 * kPageSize)};
  Send(filter, ranges, sizeof ranges);
  ASSERT_TRUE(copy_->Finish().ok());
  EXPECT_EQ(copy_->bytes_copied(), 9 * kPageSize);
  const TaskRanges memory = copy_->Memory();
  EXPECT_EQ(
      memory,
      (TaskRanges{{child_->pid(),
                   {{start, start + 12 * kPageSize}, {start + 20 * kPageSize, start + 23 * kPageSize}}}}));
  uint64_t next = start, unchanged = 0;
  auto copied = copy_->Take();
  for (const CopiedRange& range : copied[child_->pid()]) {
    if (next == start + 12 * kPageSize) next = start + 20 * kPageSize;
    EXPECT_EQ(range.address, next);
    const size_t offset = range.address - start;
    if (!range.bytes.empty()) {
      EXPECT_EQ(std::memcmp(range.bytes.data(), content_.data() + offset, range.bytes.size()), 0);
    } else {
      EXPECT_EQ(Unchanged(child_->pid(), child_->pid(), {range.address, range.address + range.size()}),
                (std::vector<AddressRange>{{range.address, range.address + range.size()}}));
    }
    unchanged += range.unchanged_bytes;
    next += range.size();
  }
  EXPECT_EQ(next, start + 23 * kPageSize);
  EXPECT_EQ(unchanged, 6 * kPageSize);
}

TEST_F(DirectCopyTest, WhatIsCopiedAheadIsCopiedOnceAndOnlyKeptWhereItIsLeftToUs) {
  const uint64_t start = reinterpret_cast<uint64_t>(memory_);
  unchanged_ = {{start + 3 * kPageSize, start + 5 * kPageSize}};
  UniqueFd filter = Connect();
  const PageFilterRange area = Area(0, kMemoryBytes);
  Send(filter, &area, sizeof area);
  const PageFilterRange left[] = {Range(kPageSize, 5 * kPageSize), Range(4u << 20, 3u << 20),
                                  Range(8 * kPageSize, kPageSize)};
  Send(filter, left, sizeof left);
  ASSERT_TRUE(copy_->Finish().ok());
  EXPECT_LE(copy_->bytes_copied(), kMemoryBytes - 2 * kPageSize);
  EXPECT_EQ(copy_->Memory(), (TaskRanges{{child_->pid(),
                                          {{start + kPageSize, start + 6 * kPageSize},
                                           {start + 8 * kPageSize, start + 9 * kPageSize},
                                           {start + (4u << 20), start + (7u << 20)}}}}));
  uint64_t bytes = 0, unchanged = 0, next = start;
  auto copied = copy_->Take();
  for (const CopiedRange& range : copied[child_->pid()]) {
    EXPECT_GE(range.address, next);
    next = range.address + range.size();
    if (!range.bytes.empty()) {
      EXPECT_EQ(
          std::memcmp(range.bytes.data(), content_.data() + (range.address - start), range.bytes.size()), 0);
    }
    bytes += range.bytes.size();
    unchanged += range.unchanged_bytes;
  }
  EXPECT_EQ(bytes, (3u << 20) + 4 * kPageSize);
  EXPECT_EQ(copy_->bytes_ahead(), (3u << 20) + 6 * kPageSize);
  EXPECT_EQ(unchanged, 2 * kPageSize);
}

TEST_F(DirectCopyTest, CopyingBeginsBeforeAnythingIsLeftToUs) {
  UniqueFd filter = Connect();
  const PageFilterRange area = Area(0, kMemoryBytes);
  Send(filter, &area, sizeof area);
  while (copy_->bytes_copied() < kMemoryBytes) std::this_thread::yield();
  ASSERT_TRUE(copy_->Finish().ok());
  EXPECT_TRUE(copy_->Take().empty());
  EXPECT_TRUE(copy_->Memory().empty());
}

TEST_F(DirectCopyTest, NothingToCopyIsFine) {
  EXPECT_TRUE(copy_->Finish().ok());
  EXPECT_TRUE(copy_->Take().empty());
}

TEST_F(DirectCopyTest, MemoryThatCannotBeReadIsNamed) {
  UniqueFd filter = Connect();
  PageFilterRange nowhere = {static_cast<uint64_t>(child_->pid()), kPageSize, 3 * kPageSize, 0};
  Send(filter, &nowhere, sizeof nowhere);
  absl::Status status = copy_->Finish();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(copy_->unreadable());
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("process ", child_->pid(), " at 1000")));
}

TEST_F(DirectCopyTest, ATaskThatIsGoneIsAFailureOnceItsMemoryIsLeftToUs) {
  UniqueFd filter = Connect();
  const PageFilterRange area = Area(0, kMemoryBytes), left = Range(0, kPageSize);
  child_->Kill();
  ASSERT_TRUE(child_->AwaitEnd());
  Send(filter, &area, sizeof area);
  Send(filter, &area, sizeof area);
  EXPECT_TRUE(copy_->status().ok());
  Send(filter, &left, sizeof left);
  EXPECT_FALSE(copy_->Finish().ok());
  EXPECT_TRUE(copy_->unreadable());
}

TEST_F(DirectCopyTest, AbandonEndsFinishAndIsNoFailureToCopy) {
  copy_->Abandon(absl::CancelledError("enough"));
  EXPECT_EQ(copy_->Finish(), absl::CancelledError("enough"));
  EXPECT_FALSE(copy_->unreadable());
}

// It would wait for ever for somebody to read what it sends, and the job with it.
TEST_F(DirectCopyTest, FilterThatCannotBeAcceptedIsTurnedAway) {
  const UniqueFd filter(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(folder_.path(), "/", PAGE_FILTER_SOCKET);
  std::memcpy(address.sun_path, path.data(), path.size());
  absl::Status status;
  {
    FewDescriptorsLeft none;
    ASSERT_EQ(::connect(filter.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    status = copy_->Finish();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_FALSE(copy_->unreadable());
  char byte = 0;
  EXPECT_LE(::recv(filter.get(), &byte, 1, 0), 0);
}

TEST_F(DirectCopyTest, FilterThatDiesWithinAnEntryFailsTheCopy) {
  PageFilterRange range = Range(0, kPageSize);
  {
    UniqueFd filter = Connect();
    Send(filter, &range, 5);
  }
  EXPECT_EQ(copy_->Finish().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace rekindle::ckpt
