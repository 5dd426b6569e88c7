#include "base/guarded_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPage = 4096, kPages = 8;

class GuardedMappingTest : public testing::Test {
 protected:
  void SetUp() override {
    auto folder = TemporaryDirectory::Make(testing::TempDir(), "guarded_mapping_test.");
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder_ = std::make_unique<TemporaryDirectory>(*std::move(folder));
    path_ = folder_->path() + "/file";
    ASSERT_TRUE(WriteFileAtomically(path_, std::string(kPages * kPage, 'x')).ok());
    fd_.Reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  }
  void Shorten(size_t pages) const {
    ASSERT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(pages * kPage)), 0);
  }
  absl::StatusOr<GuardedMapping> Map(uint64_t offset = 0, uint64_t bytes = kPages * kPage) const {
    return GuardedMapping::Map(fd_.get(), offset, bytes, path_);
  }
  static size_t CountOf(const GuardedMapping& mapping, char c) {
    return static_cast<size_t>(
        std::count(mapping.bytes().begin(), mapping.bytes().end(), static_cast<std::byte>(c)));
  }

  std::unique_ptr<TemporaryDirectory> folder_;
  std::string path_;
  UniqueFd fd_;
};

TEST_F(GuardedMappingTest, ShowsTheFile) {
  auto all = Map();
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(CountOf(*all, 'x'), kPages * kPage);
  EXPECT_FALSE(all->lost());
  auto part = Map(kPage + 5, 100);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(CountOf(*part, 'x'), 100u);
  auto nothing = Map(0, 0);
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(nothing->bytes().empty());
  for (auto [offset, bytes] : {std::pair<uint64_t, uint64_t>{1, kPages * kPage}, {~uint64_t{0}, 2}}) {
    EXPECT_TRUE(absl::IsDataLoss(Map(offset, bytes).status()));
  }
}

TEST_F(GuardedMappingTest, AFileThatGotShorterReadsAsZerosAndSaysSo) {
  auto mapping = Map();
  auto other = Map();
  ASSERT_TRUE(mapping.ok() && other.ok());
  Shorten(3);
  EXPECT_EQ(static_cast<char>(mapping->bytes()[0]), 'x');
  EXPECT_FALSE(mapping->lost()) << "nothing of what is gone was touched";
  EXPECT_EQ(static_cast<char>(mapping->bytes()[5 * kPage]), 0);
  EXPECT_TRUE(mapping->lost());
  EXPECT_TRUE(absl::IsDataLoss(mapping->LostStatus()));
  EXPECT_THAT(std::string(mapping->LostStatus().message()), HasSubstr(path_));
  EXPECT_EQ(CountOf(*mapping, 0), kPages * kPage);
  EXPECT_FALSE(other->lost());
  GuardedMapping moved = *std::move(mapping);
  EXPECT_TRUE(moved.lost());
  moved = GuardedMapping();
  auto again = Map(0, 3 * kPage);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(CountOf(*again, 'x'), 3 * kPage);
  EXPECT_FALSE(again->lost()) << "of a mapping that had its place before";
}

TEST_F(GuardedMappingTest, ManyThreadsMeetTheLossAtOnce) {
  std::vector<GuardedMapping> mappings;
  for (int i = 0; i < 50; ++i) mappings.push_back(Map().value());
  Shorten(1);
  std::atomic<size_t> found{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const GuardedMapping& mapping : mappings) found += CountOf(mapping, 'x');
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(found, 4 * 50 * kPage);
  for (const GuardedMapping& mapping : mappings) EXPECT_TRUE(mapping.lost());
}

TEST_F(GuardedMappingTest, OtherMemoryIsNotGuarded) {
  auto mapping = Map();
  ASSERT_TRUE(mapping.ok());
  // By SIGBUS, or by what a sanitizer makes of it. Zeros would be exit status 0.
  EXPECT_DEATH(
      {
        void* plain = ::mmap(nullptr, kPages * kPage, PROT_READ, MAP_SHARED, fd_.get(), 0);
        Shorten(1);
        _exit(*(static_cast<volatile char*>(plain) + 2 * kPage));
      },
      "");
}

}  // namespace
}  // namespace rekindle
