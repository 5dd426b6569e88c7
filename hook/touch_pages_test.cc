#include "hook/touch_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.h"

namespace rekindle::hook {
namespace {

constexpr size_t kPage = 4096, kPages = 8;

TEST(TouchPagesTest, TouchesWhatIsListedAndNothingElse) {
  void* memory = ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(::madvise(memory, kPages * kPage, MADV_NOHUGEPAGE), 0);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  // One page in between is not mapped.
  ASSERT_EQ(::munmap(static_cast<char*>(memory) + 6 * kPage, kPage), 0);
  const rekindle_touched_range ranges[] = {{begin + kPage, (begin + 3 * kPage) | 1},
                                           {begin + 5 * kPage, (begin + 8 * kPage) | 1},
                                           {begin + 7 * kPage, begin + 8 * kPage}};
  UniqueFd list(::memfd_create("touch", MFD_CLOEXEC));
  ASSERT_EQ(::write(list.get(), ranges, sizeof ranges), static_cast<ssize_t>(sizeof ranges));
  rekindle_touch_pages(list.get());
  UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::array<uint64_t, kPages> entries;
  ASSERT_EQ(::pread(pagemap.get(), entries.data(), sizeof entries, static_cast<off_t>(begin / kPage * 8)),
            static_cast<ssize_t>(sizeof entries));
  std::array<bool, kPages> there;
  for (size_t i = 0; i < kPages; ++i) there[i] = (entries[i] >> 63) != 0;
  EXPECT_EQ(there, (std::array<bool, kPages>{false, true, true, false, false, true, false, true}));
  ::munmap(memory, kPages * kPage);
}

}  // namespace
}  // namespace rekindle::hook
