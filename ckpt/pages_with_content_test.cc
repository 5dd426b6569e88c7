#include "ckpt/pages_with_content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "base/file.h"
#include "ckpt/pagemap_entry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rekindle::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kAskedPages = 200000;  // more than are asked about at once

class PagesWithContentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "frames are told to root alone";
    void* memory = ::mmap(nullptr, kAskedPages * PAGEMAP_PAGE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    ::madvise(memory_, kAskedPages * PAGEMAP_PAGE_BYTES, MADV_NOHUGEPAGE);
    pagemap_ = OpenFile("/proc/self/pagemap", O_RDONLY).value();
  }
  void TearDown() override {
    if (memory_ != nullptr) ::munmap(memory_, kAskedPages * PAGEMAP_PAGE_BYTES);
  }
  // Pages from `first` on, counted from the first of the memory.
  void Write(uint64_t first, uint64_t count) {
    for (uint64_t page = first; page < first + count; ++page) memory_[page * PAGEMAP_PAGE_BYTES] = 1;
  }
  AddressRange Pages(uint64_t first, uint64_t end) const {
    const auto start = reinterpret_cast<uint64_t>(memory_);
    return {start + first * PAGEMAP_PAGE_BYTES, start + end * PAGEMAP_PAGE_BYTES};
  }

  char* memory_ = nullptr;
  UniqueFd pagemap_;
};

TEST_F(PagesWithContentTest, BothWaysFindWhatWasWritten) {
  Write(0, 1);
  Write(10, 3);
  (void)*static_cast<volatile char*>(memory_ + 20 * PAGEMAP_PAGE_BYTES);  // the page of zeros
  Write(65530, 20);  // across the border of what is asked about at once
  Write(kAskedPages - 1, 1);
  const AddressRange all = Pages(0, kAskedPages);
  for (const auto ask : {PagesWithContent, PagesWithContentByEntries}) {
    EXPECT_THAT(
        ask(pagemap_.get(), all.start, all.end),
        ElementsAre(Pages(0, 1), Pages(10, 13), Pages(65530, 65550), Pages(kAskedPages - 1, kAskedPages)));
    EXPECT_THAT(ask(pagemap_.get(), Pages(11, 12).start, Pages(11, 12).end), ElementsAre(Pages(11, 12)));
    EXPECT_THAT(ask(pagemap_.get(), Pages(14, 600).start, Pages(14, 600).end), IsEmpty());
  }
}

}  // namespace
}  // namespace rekindle::ckpt
