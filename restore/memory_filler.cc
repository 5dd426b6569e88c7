#include "restore/memory_filler.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace rekindle::restore {
namespace {

constexpr uint64_t kLeastFilled = kHugePageBytes / 10 * 9;

}  // namespace

std::vector<uint64_t> BlocksWorthAHugePage(const std::vector<AddressRange>& areas,
                                           const std::vector<store::PageRun>& pages) {
  std::vector<uint64_t> blocks;
  auto run = pages.begin();
  for (const AddressRange& area : areas) {
    uint64_t first = (area.begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    for (uint64_t block = first; block + kHugePageBytes <= area.end; block += kHugePageBytes) {
      auto end_of = [](const store::PageRun& r) { return r.address + r.pages * store::kPageSize; };
      while (run != pages.end() && end_of(*run) <= block) ++run;
      if (run == pages.end()) return blocks;
      if (run->address >= block + kHugePageBytes) {
        // Nothing up to the next run: its block comes next.
        block = std::max(block, run->address / kHugePageBytes * kHugePageBytes - kHugePageBytes);
        continue;
      }
      uint64_t filled = 0;
      for (auto r = run; r != pages.end() && r->address < block + kHugePageBytes; ++r) {
        if (r->zero) continue;
        filled += std::min(end_of(*r), block + kHugePageBytes) - std::max(r->address, block);
      }
      if (filled >= kLeastFilled) blocks.push_back(block);
    }
  }
  return blocks;
}

MemoryFiller::MemoryFiller(pid_t pid, std::vector<uint64_t> blocks, BackingCosts* costs)
    : pid_(pid),
      pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))),
      blocks_(std::move(blocks)),
      states_(new std::atomic<uint8_t>[blocks_.size()]()),
      costs_(costs) {}

absl::Status MemoryFiller::Write(uint64_t address, absl::Span<const std::byte> pages) {
  // The first block that ends behind the address.
  auto block = std::upper_bound(blocks_.begin(), blocks_.end(), address,
                                [](uint64_t a, uint64_t b) { return a < b + kHugePageBytes; });
  while (!pages.empty()) {
    const uint64_t end = address + pages.size();
    uint64_t until = end;
    bool inside = block != blocks_.end() && *block <= address;
    if (inside) {
      until = std::min(end, *block + kHugePageBytes);
    } else if (block != blocks_.end()) {
      until = std::min(end, *block);
    }
    absl::Span<const std::byte> piece = pages.subspan(0, until - address);
    if (inside) {
      RK_RETURN_IF_ERROR(WriteInBlock(static_cast<size_t>(block - blocks_.begin()), address, piece));
      ++block;
    } else {
      RK_RETURN_IF_ERROR(Copy(address, piece));
    }
    pages.remove_prefix(piece.size());
    address = until;
  }
  return absl::OkStatus();
}

absl::Status MemoryFiller::WriteInBlock(size_t block, uint64_t address, absl::Span<const std::byte> pages) {
  uint8_t state = kUntouched;
  // Whoever comes first chooses. Others that come meanwhile copy as into small pages, which at worst makes
  // the kernel keep those.
  if (states_[block].compare_exchange_strong(state, kSmall) && costs_->Next() == Backing::kHuge) {
    // The kernel makes a huge page only of a block that has a page already.
    RK_RETURN_IF_ERROR(Copy(address, pages.subspan(0, store::kPageSize)));
    address += store::kPageSize;
    pages.remove_prefix(store::kPageSize);
    Stopwatch watch;
    if (MakeHugePage(blocks_[block])) {
      costs_->Made(watch.seconds());
      states_[block].store(state = kHuge);
    } else {
      costs_->NotMade();
    }
  }
  if (pages.empty()) return absl::OkStatus();
  Stopwatch watch;
  RK_RETURN_IF_ERROR(Copy(address, pages));
  costs_->Copied(state == kHuge ? Backing::kHuge : Backing::kSmall, pages.size(), watch.seconds());
  return absl::OkStatus();
}

absl::Status MemoryFiller::Copy(uint64_t address, absl::Span<const std::byte> pages) const {
  while (!pages.empty()) {
    iovec local{const_cast<std::byte*>(pages.data()), pages.size()};
    iovec remote{reinterpret_cast<void*>(address), pages.size()};
    ssize_t n = ::process_vm_writev(pid_, &local, 1, &remote, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ESRCH) {
      return absl::AbortedError(
          absl::StrCat("process ", pid_, " was killed while its memory was being filled: try again"));
    }
    if (n <= 0) {
      return ErrnoStatus(n < 0 ? errno : EFAULT,
                         absl::StrCat("filling the memory of process ", pid_, " at ", absl::Hex(address)));
    }
    pages.remove_prefix(static_cast<size_t>(n));
    address += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

bool MemoryFiller::MakeHugePage(uint64_t address) const {
  iovec block{reinterpret_cast<void*>(address), kHugePageBytes};
  return ::syscall(SYS_process_madvise, pidfd_.get(), &block, 1, MADV_COLLAPSE, 0) ==
         static_cast<long>(kHugePageBytes);
}

}  // namespace rekindle::restore
