// How memory gets out of another process: the parts that the ways of freeze_ways.cc are made of.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "dedup_store/hashing.h"

namespace rekindle::bench {

// Memory as captures stage into: huge pages, touched before. Forked processes do not get it.
class Room {
 public:
  static absl::StatusOr<Room> Make(uint64_t bytes);
  Room(Room&& other) noexcept;
  Room& operator=(Room&&) = delete;
  ~Room();

  std::byte* data() const { return data_; }
  absl::Span<std::byte> Part(uint64_t offset, uint64_t bytes) const { return {data_ + offset, bytes}; }

 private:
  Room(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  uint64_t bytes_;
};

// One area of a process's memory, by offsets into it. Thread-safe.
class Source {
 public:
  enum class By { kVmReadv, kProcMem, kOwnMemory };
  // `pid` is ignored for one's own memory.
  static absl::StatusOr<Source> Open(By by, pid_t pid, uint64_t address, uint64_t bytes);
  absl::Status Read(uint64_t offset, absl::Span<std::byte> to) const;
  pid_t pid() const { return pid_; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Source(By by, pid_t pid, uint64_t address, uint64_t bytes)
      : by_(by), pid_(pid), address_(address), bytes_(bytes) {}
  By by_;
  pid_t pid_;
  uint64_t address_, bytes_;
  UniqueFd file_;
};

struct CopyPlan {
  size_t threads = 2;
  uint64_t slice_bytes = 1u << 20;  // what a thread copies at once
  // By way of a buffer of a slice that stays in the cache, and with stores that go past the cache.
  bool non_temporal = false;
};

absl::Status CopyAll(const Source& from, const CopyPlan& plan, const Room& to);

// Pages that are not as they are in `copy` are copied into it. Each slice is read into a buffer that stays in
// the cache. Returns how many pages that were.
absl::StatusOr<uint64_t> CopyDifferent(const Source& from, const CopyPlan& plan, const Room& copy);

// The same, told by each page's fingerprint. Without knowledge of the pages it copies all of them.
class FingerprintedCopy {
 public:
  FingerprintedCopy() : fingerprinter_(store::StoreSeed{1}) {}
  absl::StatusOr<uint64_t> Update(const Source& from, const CopyPlan& plan, const Room& copy);

 private:
  const store::Fingerprinter fingerprinter_;
  std::vector<uint64_t> known_;
};

// Pages written since the last look, as the kernel tracks them (PAGEMAP_SCAN, Linux 6.7) for an area that is
// registered with an asynchronous userfaultfd. Each look begins anew.
struct Range {
  uint64_t offset, bytes;
};
absl::StatusOr<std::vector<Range>> TakeWritten(const Source& of);
absl::Status CopyRanges(const Source& from, const CopyPlan& plan, absl::Span<const Range> ranges,
                        const Room& to);

// Copies memory as it was at one moment while its process runs on: what it wants to write is copied before it
// may.
class CopyBeforeWrite {
 public:
  // `userfaultfd`: of the process, which has registered its memory for write protection. `chunk_bytes`: what
  // is copied and released at once. All must outlive this.
  CopyBeforeWrite(const Source& from, int userfaultfd, uint64_t chunk_bytes, const Room& to);

  // The moment. The process stands still meanwhile.
  absl::Status Protect();
  // Copies all, from one thread and one more that serves the writers. Nothing is protected afterwards,
  // whatever happens.
  absl::Status Copy();

 private:
  absl::Status SetProtection(uint64_t offset, uint64_t bytes, bool on);
  absl::Status Take(uint64_t chunk);
  absl::Status Serve(int stop);

  const Source& from_;
  const int userfaultfd_;
  const uint64_t chunk_bytes_;
  const Room& to_;
  std::vector<std::atomic<bool>> taken_;  // by chunk
};

}  // namespace rekindle::bench
