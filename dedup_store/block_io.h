// All pack and index file I/O of the store goes through BlockIo, so that a test can fail or "crash" any
// single operation. The real one writes with io_uring, O_DIRECT and registered buffers, and reads through the
// page cache.
//
// BlockIo and BlockFile are thread-safe. Errors name the file; a full disk is ResourceExhausted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rekindle::store {

// Offsets, sizes and memory of direct writes are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

// One buffer of a WriteQueue: `data` is aligned for direct I/O, `capacity` bytes long.
struct WriteBuffer {
  std::byte* data = nullptr;
  size_t capacity = 0;
  size_t index = 0;
};

// Writes to one file, several in flight. Thread-safe. Must not outlive its file.
class WriteQueue {
 public:
  virtual ~WriteQueue() = default;
  // A free buffer; waits for a write to end when there is none. Fails when an earlier write has failed.
  virtual absl::StatusOr<WriteBuffer*> Acquire() = 0;
  // Starts writing the first `bytes` (aligned) of `buffer` at `offset` (aligned) and takes the buffer back.
  virtual absl::Status Submit(WriteBuffer* buffer, size_t bytes, uint64_t offset) = 0;
  // Waits until every write has ended. The first error of any of them.
  virtual absl::Status Drain() = 0;
};

// Part of a file in memory, read-only; unmapped at destruction.
class FileMapping {
 public:
  virtual ~FileMapping() = default;
  virtual absl::Span<const std::byte> bytes() const = 0;
  // Could some of it not be read when it was touched? All of it is zeros then: to be asked after it was used.
  virtual bool lost() const = 0;
};

enum class LockMode { kShared, kExclusive };

class BlockFile {
 public:
  virtual ~BlockFile() = default;
  virtual const std::string& path() const = 0;
  // Exactly out.size() bytes; DataLoss when the file ends before, and see ReadError.
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const = 0;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
  virtual absl::StatusOr<uint64_t> AllocatedBytes() const = 0;  // on disk, holes left out
  virtual absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const = 0;
  virtual void WillNeed(uint64_t offset, uint64_t bytes) const = 0;  // a hint
  // False when `wait` is false and somebody else holds a lock that conflicts. Released when the file is
  // closed.
  virtual absl::StatusOr<bool> Lock(LockMode mode, bool wait) = 0;
  // False when the file's name was removed meanwhile, or is another file's by now.
  virtual absl::StatusOr<bool> IsLinked() const = 0;
  // What Size, IsLinked and ReadAt tell may be some seconds old where other nodes use the file too: NFS
  // remembers it. Afterwards they tell what was so when this was called, or what came since.
  virtual absl::Status Revalidate() const = 0;

  virtual absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) = 0;
  // A single write of any size and place, for repairs; the file must not have come from Create.
  virtual absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) = 0;
  // Of the file system that the file is on, for who is not root; a quota may leave less.
  virtual absl::StatusOr<uint64_t> FreeBytes() const = 0;
  // Takes disk space, keeps the size. Unimplemented where the file system can't. After an error some of it
  // may be taken: ext4 keeps what it got before it found no more. Truncate gives back what lies behind the
  // size.
  virtual absl::Status Allocate(uint64_t offset, uint64_t bytes) = 0;
  // Whether what Allocate took is there for a later write, come what may. ZFS only looks whether there is as
  // much; where files are copied on write a snapshot keeps it; what a file server has is not known.
  virtual bool KeepsAllocated() const = 0;
  // Whether the space of what is removed can be had only some seconds later (ZFS).
  virtual bool GivesBackLate() const = 0;
  virtual absl::Status Truncate(uint64_t size) = 0;
  // The range reads as zeros afterwards and its whole blocks go back to the file system.
  virtual absl::Status PunchHole(uint64_t offset, uint64_t bytes) = 0;
  virtual absl::Status Sync() = 0;
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> Create(
      const std::string& path) = 0;  // must not exist yet
  // For small files that are written with WriteAt; an existing one is an error here too.
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) = 0;
  // For reading what the disk has, past the page cache, which stays as it is. Only of files whose size is a
  // multiple of kDirectAlignment. Where the file system can't do that it is as Open.
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> OpenUncached(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Unlink(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Called before the catalog's transaction `what` is committed, so that a test can fail there.
  virtual absl::Status BeforeCatalogCommit(absl::string_view what) = 0;
};

// The status for a read that the kernel refused. DataLoss where that tells that what was written can't be had
// from the disk, whichever of its words the kernel uses for that.
// `bytes`: how much was asked for from `offset` on.
absl::Status ReadError(int error_number, const std::string& path, uint64_t offset, uint64_t bytes);
// Whether a DataLoss is one that the disk reported, which it may not do the next time, and not one that was
// seen in what it gave.
bool IsRefusedByDisk(const absl::Status& status);
struct RefusedPlace {
  std::string path;
  uint64_t offset = 0, bytes = 0;
};
// Of a status that IsRefusedByDisk: what was to be read.
RefusedPlace PlaceOf(const absl::Status& status);

// The one that does real I/O; lives for ever.
BlockIo* RealBlockIo();

}  // namespace rekindle::store
