// Writing pages into the memory of a process that stands still.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "restore/backing_costs.h"

namespace rekindle::restore {

// Start and end of memory, in bytes.
struct AddressRange {
  uint64_t begin = 0, end = 0;
};

// The aligned blocks of kHugePageBytes within `areas` of which nine tenths or more are in `pages`: backing
// them with huge pages takes at most a tenth more memory. Both in ascending order; so is the result, of block
// addresses.
std::vector<uint64_t> BlocksWorthAHugePage(const std::vector<AddressRange>& areas,
                                           const std::vector<store::PageRun>& pages);

// One process. Write is thread-safe.
class MemoryFiller {
 public:
  // `blocks` (see above) get huge pages where `costs`, which must outlive this, says that it pays.
  MemoryFiller(pid_t pid, std::vector<uint64_t> blocks, BackingCosts* costs);

  // Every page of the process may be written once. NotFound when the process has gone; errors name it and the
  // address.
  absl::Status Write(uint64_t address, absl::Span<const std::byte> pages);

 private:
  enum BlockState : uint8_t { kUntouched, kSmall, kHuge };

  absl::Status WriteInBlock(size_t block, uint64_t address, absl::Span<const std::byte> pages);
  absl::Status Copy(uint64_t address, absl::Span<const std::byte> pages) const;
  bool MakeHugePage(uint64_t address) const;

  const pid_t pid_;
  const UniqueFd pidfd_;
  const std::vector<uint64_t> blocks_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;  // BlockState of each
  BackingCosts* const costs_;
};

}  // namespace rekindle::restore
