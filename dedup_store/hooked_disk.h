// A disk on which a test says what fails: a BlockIo over real files that asks a function before what it does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

// Thread-safe when the hook is.
class HookedDisk : public BlockIo {
 public:
  enum class Call {
    kOpen,
    kRead,
    kReadUncached,
    kLock,
    kIsLinked,
    kPunchHole,
    kSync,
    kNewWriteQueue,
    kAllocate
  };
  struct Operation {
    Call call;
    const std::string& path;
    uint64_t offset = 0, bytes = 0;  // of a write queue: of all its buffers
    bool writable = false;           // the file was opened, or is to be opened, for writing
    bool exclusive = false;          // of a lock
  };
  // Another status than OK is the operation's result, and nothing of it happens.
  using Hook = std::function<absl::Status(const Operation&)>;

  explicit HookedDisk(Hook hook) : hook_(std::move(hook)) {}

  // From now on it is as a client of NFS is: an open file has the size that it had when it was opened, when
  // this client last changed it, or (where there is a limit to what is remembered) at the last Revalidate.
  enum class Memory { kNone, kUntilRevalidated, kForEver };
  void Remember(Memory memory) { memory_ = memory; }
  // From now on no disk space can be taken beforehand.
  void RefuseAllocation() { cannot_allocate_ = true; }
  // From now on it is as a client of NFS that has lost its locks, and gets none: it is told that it has them.
  void LoseLocks() { no_locks_ = true; }
  // From now on space that was taken beforehand is none (ZFS).
  void OnlyPretendToAllocate() { pretends_ = true; }
  // From now on the space of what is removed is there only later (ZFS too).
  void GiveBackLate() { gives_back_late_ = true; }
  // From now on files are told that so much of the disk is free.
  void TellFree(uint64_t bytes) { free_ = bytes; }

  absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path) override {
    return Wrap(RealBlockIo()->Create(path), Call::kRead, true);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) override {
    return Wrap(RealBlockIo()->CreateBuffered(path), Call::kRead, true);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) override {
    RK_RETURN_IF_ERROR(hook_({Call::kOpen, path, 0, 0, writable}));
    return Wrap(RealBlockIo()->Open(path, writable), Call::kRead, writable);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenUncached(const std::string& path) override {
    RK_RETURN_IF_ERROR(hook_({Call::kOpen, path, 0, 0, false}));
    return Wrap(RealBlockIo()->OpenUncached(path), Call::kReadUncached, false);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return RealBlockIo()->Rename(from, to);
  }
  absl::Status Unlink(const std::string& path) override { return RealBlockIo()->Unlink(path); }
  absl::Status SyncDirectory(const std::string& path) override { return RealBlockIo()->SyncDirectory(path); }
  absl::Status BeforeCatalogCommit(absl::string_view) override { return absl::OkStatus(); }

 private:
  class File : public BlockFile {
   public:
    File(const HookedDisk* disk, std::unique_ptr<BlockFile> real, Call read, bool writable)
        : disk_(disk), real_(std::move(real)), read_(read), writable_(writable) {
      if (disk_->memory_ != Memory::kNone) Learn();
    }

    const std::string& path() const override { return real_->path(); }
    absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
      RK_RETURN_IF_ERROR(Ask(read_, offset, out.size()));
      return real_->ReadAt(offset, out);
    }
    absl::StatusOr<uint64_t> Size() const override {
      if (const int64_t size = size_; size >= 0) return static_cast<uint64_t>(size);
      return real_->Size();
    }
    absl::Status Revalidate() const override {
      if (disk_->memory_ != Memory::kForEver) Learn();
      return real_->Revalidate();
    }
    absl::StatusOr<uint64_t> AllocatedBytes() const override { return real_->AllocatedBytes(); }
    absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const override {
      return real_->Map(offset, bytes);
    }
    void WillNeed(uint64_t offset, uint64_t bytes) const override { real_->WillNeed(offset, bytes); }
    absl::StatusOr<bool> Lock(LockMode mode, bool wait) override {
      RK_RETURN_IF_ERROR(
          disk_->hook_({Call::kLock, real_->path(), 0, 0, writable_, mode == LockMode::kExclusive}));
      return disk_->no_locks_ ? true : real_->Lock(mode, wait);
    }
    absl::StatusOr<bool> IsLinked() const override {
      RK_RETURN_IF_ERROR(Ask(Call::kIsLinked, 0, 0));
      return real_->IsLinked();
    }
    absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) override {
      size_ = kNotRemembered;
      RK_RETURN_IF_ERROR(Ask(Call::kNewWriteQueue, 0, buffer_bytes * buffers));
      return real_->NewWriteQueue(buffer_bytes, buffers);
    }
    absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
      RK_RETURN_IF_ERROR(real_->WriteAt(offset, bytes));
      if (size_ >= 0) Learn();
      return absl::OkStatus();
    }
    absl::StatusOr<uint64_t> FreeBytes() const override {
      if (const uint64_t free = disk_->free_; free != kAsItIs) return free;
      return real_->FreeBytes();
    }
    absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
      if (disk_->cannot_allocate_) return absl::UnimplementedError("as NFS before 4.2");
      RK_RETURN_IF_ERROR(Ask(Call::kAllocate, offset, bytes));
      if (disk_->pretends_) return absl::OkStatus();
      return real_->Allocate(offset, bytes);
    }
    bool KeepsAllocated() const override { return !disk_->pretends_ && real_->KeepsAllocated(); }
    bool GivesBackLate() const override { return disk_->gives_back_late_; }
    absl::Status Truncate(uint64_t size) override {
      RK_RETURN_IF_ERROR(real_->Truncate(size));
      if (size_ >= 0) Learn();
      return absl::OkStatus();
    }
    absl::Status PunchHole(uint64_t offset, uint64_t bytes) override {
      RK_RETURN_IF_ERROR(Ask(Call::kPunchHole, offset, bytes));
      return real_->PunchHole(offset, bytes);
    }
    absl::Status Sync() override {
      RK_RETURN_IF_ERROR(Ask(Call::kSync, 0, 0));
      return real_->Sync();
    }

   private:
    absl::Status Ask(Call call, uint64_t offset, uint64_t bytes) const {
      return disk_->hook_({call, real_->path(), offset, bytes, writable_});
    }

    static constexpr int64_t kNotRemembered = -1;
    void Learn() const {
      const auto size = real_->Size();
      size_ = disk_->memory_ == Memory::kNone || !size.ok() ? kNotRemembered : static_cast<int64_t>(*size);
    }

    const HookedDisk* const disk_;
    const std::unique_ptr<BlockFile> real_;
    const Call read_;
    const bool writable_;
    mutable std::atomic<int64_t> size_{kNotRemembered};
  };

  absl::StatusOr<std::unique_ptr<BlockFile>> Wrap(absl::StatusOr<std::unique_ptr<BlockFile>> real, Call read,
                                                  bool writable) const {
    RK_RETURN_IF_ERROR(real.status());
    return std::make_unique<File>(this, *std::move(real), read, writable);
  }

  const Hook hook_;
  std::atomic<Memory> memory_{Memory::kNone};
  std::atomic<bool> cannot_allocate_{false}, pretends_{false}, no_locks_{false}, gives_back_late_{false};
  static constexpr uint64_t kAsItIs = ~uint64_t{0};
  std::atomic<uint64_t> free_{kAsItIs};
};

}  // namespace rekindle::store
