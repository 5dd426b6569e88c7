// A file of the store that is a string in memory, for what only reads.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

class MemoryFile : public BlockFile {
 public:
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}
  const std::string& path() const override { return path_; }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset)
      return absl::DataLossError("too short");
    if (!out.empty()) memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Size() const override { return bytes_.size(); }
  absl::StatusOr<uint64_t> AllocatedBytes() const override { return bytes_.size(); }
  absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t, uint64_t) const override { return ReadOnly(); }
  void WillNeed(uint64_t, uint64_t) const override {}
  absl::StatusOr<bool> Lock(LockMode, bool) override { return true; }
  absl::StatusOr<bool> IsLinked() const override { return true; }
  absl::Status Revalidate() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t, size_t) override { return ReadOnly(); }
  absl::Status WriteAt(uint64_t, absl::Span<const std::byte>) override { return ReadOnly(); }
  absl::StatusOr<uint64_t> FreeBytes() const override { return 0; }
  absl::Status Allocate(uint64_t, uint64_t) override { return ReadOnly(); }
  bool KeepsAllocated() const override { return false; }
  bool GivesBackLate() const override { return false; }
  absl::Status Truncate(uint64_t) override { return ReadOnly(); }
  absl::Status PunchHole(uint64_t, uint64_t) override { return ReadOnly(); }
  absl::Status Sync() override { return ReadOnly(); }

 private:
  static absl::Status ReadOnly() { return absl::UnimplementedError("a file in memory is only read"); }
  std::string path_ = "memory";
  std::string bytes_;
};

}  // namespace rekindle::store
