// What the tests of the catalog share: I/O that fails or "loses power" at a chosen operation.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

// What becomes of that which was not synced when the power goes.
enum class PowerLoss { kNone, kKeepsAll, kLosesAll, kTearsWrites };

// Counts operations that change something or wait for the disk; number `fail_at` fails. With a loss of power
// all further ones fail too. Used by one thread.
class PowerIo : public BlockIo {
 public:
  PowerIo(int fail_at, PowerLoss loss) : fail_at_(fail_at), loss_(loss) {}
  int operations() const { return operations_; }

  absl::Status Step(absl::string_view what) {
    if (++operations_ == fail_at_ && loss_ != PowerLoss::kNone) LosePower();
    if (operations_ == fail_at_ || off_) return absl::InternalError(absl::StrCat("injected: ", what));
    return absl::OkStatus();
  }
  // Remembers what `path` holds from `offset` on, before it is changed up to `end`.
  absl::Status BeforeChange(BlockFile& file, uint64_t offset, uint64_t end) {
    RK_ASSIGN_OR_RETURN(uint64_t size, file.Size());
    Undo undo{offset, end, size, std::string(size > offset ? size - offset : 0, '\0')};
    RK_RETURN_IF_ERROR(
        file.ReadAt(offset, {reinterpret_cast<std::byte*>(undo.bytes.data()), undo.bytes.size()}));
    unsynced_[file.path()].push_back(std::move(undo));
    return absl::OkStatus();
  }
  void Synced(const std::string& path) { unsynced_.erase(path); }

  absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path) override {
    return CreateBuffered(path);
  }
  absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) override;
  absl::Status Rename(const std::string& from, const std::string& to) override {
    RK_RETURN_IF_ERROR(Step("rename"));
    RK_RETURN_IF_ERROR(RealBlockIo()->Rename(from, to));
    auto node = unsynced_.extract(from);
    if (!node.empty()) {
      node.key() = to;
      unsynced_.insert(std::move(node));
    }
    unsynced_names_.emplace_back([from, to] { return RealBlockIo()->Rename(to, from); });
    return absl::OkStatus();
  }
  absl::Status Unlink(const std::string& path) override {
    RK_RETURN_IF_ERROR(Step("unlink"));
    if (PathExists(path)) {
      RK_ASSIGN_OR_RETURN(std::string content, ReadFile(path));
      unsynced_names_.emplace_back([path, content] { return WriteFileAtomically(path, content); });
    }
    unsynced_.erase(path);
    return RealBlockIo()->Unlink(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    RK_RETURN_IF_ERROR(Step("sync of a directory"));
    unsynced_names_.clear();
    return RealBlockIo()->SyncDirectory(path);
  }
  absl::Status BeforeCatalogCommit(absl::string_view what) override { return Step(what); }

 private:
  struct Undo {
    uint64_t offset, end, size;
    std::string bytes;
  };

  void LosePower() {
    off_ = true;
    if (loss_ == PowerLoss::kKeepsAll) return;
    for (auto& [path, undos] : unsynced_) {
      auto file = RealBlockIo()->Open(path, true);
      if (!file.ok()) continue;
      for (auto undo = undos.rbegin(); undo != undos.rend(); ++undo) {
        uint64_t keep = 0;
        if (loss_ == PowerLoss::kTearsWrites && undo->end > undo->offset) {
          keep = (undo->end - undo->offset) / 2;
        }
        const uint64_t from = std::min<uint64_t>(keep, undo->bytes.size());
        Must((*file)->Truncate(std::max(undo->size, undo->offset + keep)));
        Must((*file)->WriteAt(
            undo->offset + from,
            {reinterpret_cast<const std::byte*>(undo->bytes.data()) + from, undo->bytes.size() - from}));
      }
    }
    if (loss_ != PowerLoss::kLosesAll) return;
    for (auto undo = unsynced_names_.rbegin(); undo != unsynced_names_.rend(); ++undo) Must((*undo)());
  }
  static void Must(const absl::Status& status) {
    if (!status.ok()) abort();
  }

  const int fail_at_;
  const PowerLoss loss_;
  int operations_ = 0;
  bool off_ = false;
  std::map<std::string, std::vector<Undo>> unsynced_;
  std::vector<std::function<absl::Status()>> unsynced_names_;
};

class PowerFile : public BlockFile {
 public:
  PowerFile(PowerIo* io, std::unique_ptr<BlockFile> real) : io_(io), real_(std::move(real)) {}
  const std::string& path() const override { return real_->path(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    RK_RETURN_IF_ERROR(io_->Step("read"));
    return real_->ReadAt(offset, out);
  }
  absl::StatusOr<uint64_t> Size() const override { return real_->Size(); }
  absl::StatusOr<uint64_t> AllocatedBytes() const override { return real_->AllocatedBytes(); }
  absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const override {
    return real_->Map(offset, bytes);
  }
  void WillNeed(uint64_t offset, uint64_t bytes) const override { real_->WillNeed(offset, bytes); }
  absl::StatusOr<bool> Lock(LockMode mode, bool wait) override {
    RK_RETURN_IF_ERROR(io_->Step("lock"));
    return real_->Lock(mode, wait);
  }
  absl::StatusOr<bool> IsLinked() const override { return real_->IsLinked(); }
  absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) override {
    return real_->NewWriteQueue(buffer_bytes, buffers);
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    RK_RETURN_IF_ERROR(io_->BeforeChange(*real_, offset, offset + bytes.size()));
    if (absl::Status status = io_->Step("write"); !status.ok()) {
      (void)real_->WriteAt(offset, bytes.subspan(0, bytes.size() / 3));
      return status;
    }
    return real_->WriteAt(offset, bytes);
  }
  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    RK_RETURN_IF_ERROR(io_->Step("allocate"));
    return real_->Allocate(offset, bytes);
  }
  absl::Status Truncate(uint64_t size) override {
    RK_RETURN_IF_ERROR(io_->Step("truncate"));
    RK_RETURN_IF_ERROR(io_->BeforeChange(*real_, size, size));
    return real_->Truncate(size);
  }
  absl::Status PunchHole(uint64_t offset, uint64_t bytes) override { return real_->PunchHole(offset, bytes); }
  absl::Status Sync() override {
    RK_RETURN_IF_ERROR(io_->Step("sync"));
    io_->Synced(path());
    return real_->Sync();
  }

 private:
  PowerIo* io_;
  std::unique_ptr<BlockFile> real_;
};

inline absl::StatusOr<std::unique_ptr<BlockFile>> PowerIo::CreateBuffered(const std::string& path) {
  RK_RETURN_IF_ERROR(Step("create"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->CreateBuffered(path));
  unsynced_names_.emplace_back([path] { return RealBlockIo()->Unlink(path); });
  return std::make_unique<PowerFile>(this, std::move(file));
}

inline absl::StatusOr<std::unique_ptr<BlockFile>> PowerIo::Open(const std::string& path, bool writable) {
  RK_RETURN_IF_ERROR(Step("open"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->Open(path, writable));
  return std::make_unique<PowerFile>(this, std::move(file));
}

}  // namespace rekindle::store
