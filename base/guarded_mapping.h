// Files in memory that survive their own damage. Touching a page of a mapping that the disk can't read, or
// that lies behind the end of a file which somebody has made shorter, kills the process (SIGBUS). Here it
// does not: all of the mapping reads as zeros from then on, and `lost` says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rekindle {

// Read-only. Any thread may read, and ask.
class GuardedMapping {
 public:
  // Of `bytes` bytes of the file from `offset` on; `path` is for messages. DataLoss: the file ends before.
  // ResourceExhausted: more than some thousand at a time.
  static absl::StatusOr<GuardedMapping> Map(int fd, uint64_t offset, uint64_t bytes, const std::string& path);
  GuardedMapping() = default;
  GuardedMapping(GuardedMapping&& other) noexcept;
  GuardedMapping& operator=(GuardedMapping&& other) noexcept;
  ~GuardedMapping();

  absl::Span<const std::byte> bytes() const { return bytes_; }
  // To be asked after the bytes were used: what was made of them is worth nothing then.
  bool lost() const;
  // What to say then.
  absl::Status LostStatus() const;

 private:
  void Unmap();

  void* base_ = nullptr;
  size_t mapped_ = 0;
  size_t slot_ = 0;  // of the table that the signal handler looks into
  absl::Span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace rekindle
