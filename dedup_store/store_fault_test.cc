// Fails every single I/O operation of a commit, a gc and a merge in turn, in two ways: as an error that the
// store must survive, and as a crash after which nothing more happens and what was not synced may be lost.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.h"
#include "base/status.h"
#include "dedup_store/block_io.h"
#include "dedup_store/store_testing.h"

namespace rekindle::store {
namespace {

enum class FaultKind { kError, kCrash };

// Counts operations; the one with number `fail_at` fails. After a crash all fail.
class FaultIo : public BlockIo {
 public:
  FaultIo(int fail_at, FaultKind kind) : fail_at_(fail_at), kind_(kind) {}

  int operations() const { return operations_; }

  absl::Status Step(absl::string_view what) {
    absl::MutexLock lock(&mutex_);
    ++operations_;
    if (operations_ == fail_at_ && kind_ == FaultKind::kCrash) Crash();
    if (operations_ == fail_at_ || crashed_) return absl::InternalError(absl::StrCat("injected: ", what));
    return absl::OkStatus();
  }
  void Wrote(const std::string& path, uint64_t offset, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    unsynced_[path].push_back({offset, bytes});
  }
  void Synced(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    unsynced_.erase(path);
  }
  void Renamed(const std::string& from, const std::string& to) {
    absl::MutexLock lock(&mutex_);
    auto node = unsynced_.extract(from);
    if (node.empty()) return;
    node.key() = to;
    unsynced_.insert(std::move(node));
  }

  absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) override;
  absl::Status Rename(const std::string& from, const std::string& to) override {
    RK_RETURN_IF_ERROR(Step("rename"));
    RK_RETURN_IF_ERROR(RealBlockIo()->Rename(from, to));
    Renamed(from, to);
    return absl::OkStatus();
  }
  absl::Status Unlink(const std::string& path) override {
    RK_RETURN_IF_ERROR(Step("unlink"));
    return RealBlockIo()->Unlink(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    RK_RETURN_IF_ERROR(Step("sync of a directory"));
    return RealBlockIo()->SyncDirectory(path);
  }
  absl::Status BeforeCatalogCommit(absl::string_view what) override { return Step(what); }

 private:
  // What was written since the last sync is gone, every second piece of it.
  void Crash() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    crashed_ = true;
    for (const auto& [path, ranges] : unsynced_) {
      int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (fd < 0) continue;
      const std::string zeros(4096, '\0');
      bool lose = true;
      for (const auto& [offset, bytes] : ranges) {
        for (uint64_t at = offset; at < offset + bytes; at += zeros.size(), lose = !lose) {
          if (lose && pwrite(fd, zeros.data(), zeros.size(), static_cast<off_t>(at)) < 0) abort();
        }
      }
      close(fd);
    }
  }

  const int fail_at_;
  const FaultKind kind_;
  absl::Mutex mutex_;
  int operations_ = 0;
  bool crashed_ = false;
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> unsynced_ ABSL_GUARDED_BY(mutex_);
};

class FaultQueue : public WriteQueue {
 public:
  FaultQueue(FaultIo* io, std::string path, std::unique_ptr<WriteQueue> real)
      : io_(io), path_(std::move(path)), real_(std::move(real)) {}
  absl::StatusOr<WriteBuffer*> Acquire() override { return real_->Acquire(); }
  absl::Status Submit(WriteBuffer* buffer, size_t bytes, uint64_t offset) override {
    if (absl::Status status = io_->Step("write"); !status.ok()) {
      // Half of it reaches the disk.
      (void)real_->Submit(buffer, bytes / 2 / kDirectAlignment * kDirectAlignment, offset);
      return status;
    }
    io_->Wrote(path_, offset, bytes);
    return real_->Submit(buffer, bytes, offset);
  }
  absl::Status Drain() override {
    absl::Status drained = real_->Drain();
    RK_RETURN_IF_ERROR(io_->Step("drain"));
    return drained;
  }

 private:
  FaultIo* io_;
  std::string path_;
  std::unique_ptr<WriteQueue> real_;
};

class FaultFile : public BlockFile {
 public:
  FaultFile(FaultIo* io, std::unique_ptr<BlockFile> real) : io_(io), real_(std::move(real)) {}
  const std::string& path() const override { return real_->path(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    RK_RETURN_IF_ERROR(io_->Step("read"));
    return real_->ReadAt(offset, out);
  }
  absl::StatusOr<uint64_t> Size() const override {
    RK_RETURN_IF_ERROR(io_->Step("size"));
    return real_->Size();
  }
  absl::StatusOr<uint64_t> AllocatedBytes() const override { return real_->AllocatedBytes(); }
  absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const override {
    RK_RETURN_IF_ERROR(io_->Step("map"));
    return real_->Map(offset, bytes);
  }
  void WillNeed(uint64_t offset, uint64_t bytes) const override { real_->WillNeed(offset, bytes); }
  absl::StatusOr<bool> Lock(LockMode mode, bool wait) override {
    RK_RETURN_IF_ERROR(io_->Step("lock"));
    return real_->Lock(mode, wait);
  }
  absl::StatusOr<bool> IsLinked() const override { return real_->IsLinked(); }
  absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) override {
    RK_RETURN_IF_ERROR(io_->Step("write queue"));
    RK_ASSIGN_OR_RETURN(std::unique_ptr<WriteQueue> queue, real_->NewWriteQueue(buffer_bytes, buffers));
    return std::make_unique<FaultQueue>(io_, path(), std::move(queue));
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    RK_RETURN_IF_ERROR(io_->Step("write"));
    io_->Wrote(path(), offset, bytes.size());
    return real_->WriteAt(offset, bytes);
  }
  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    RK_RETURN_IF_ERROR(io_->Step("allocate"));
    return real_->Allocate(offset, bytes);
  }
  absl::Status Truncate(uint64_t size) override {
    RK_RETURN_IF_ERROR(io_->Step("truncate"));
    return real_->Truncate(size);
  }
  absl::Status PunchHole(uint64_t offset, uint64_t bytes) override {
    RK_RETURN_IF_ERROR(io_->Step("punch"));
    return real_->PunchHole(offset, bytes);
  }
  absl::Status Sync() override {
    RK_RETURN_IF_ERROR(io_->Step("sync"));
    io_->Synced(path());
    return real_->Sync();
  }

 private:
  FaultIo* io_;
  std::unique_ptr<BlockFile> real_;
};

absl::StatusOr<std::unique_ptr<BlockFile>> FaultIo::Create(const std::string& path) {
  RK_RETURN_IF_ERROR(Step("create"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->Create(path));
  return std::make_unique<FaultFile>(this, std::move(file));
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultIo::CreateBuffered(const std::string& path) {
  RK_RETURN_IF_ERROR(Step("create"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->CreateBuffered(path));
  return std::make_unique<FaultFile>(this, std::move(file));
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultIo::Open(const std::string& path, bool writable) {
  RK_RETURN_IF_ERROR(Step("open"));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->Open(path, writable));
  return std::make_unique<FaultFile>(this, std::move(file));
}

class StoreFaultTest : public StoreTest {
 protected:
  // Hundreds of stores are made here, and what a disk's cache loses is simulated: memory does.
  std::string parent_folder() const override {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : StoreTest::parent_folder();
  }

  void SetUp() override {
    StoreTest::SetUp();
    SetLogLevel(LogLevel::kError);
    base_.objects["m"][0] = MakePages(70, 1) + MakePages(30, 2, Content::kText);
    base_.blobs["b"] = "base";
    next_ = base_;
    next_.objects["m"][0].replace(10 * kPageSize, 40 * kPageSize, MakePages(40, 3));
    next_.objects["n"][0x1000] = base_.objects["m"][0].substr(kPageSize, 5 * kPageSize);
    next_.blobs["b"] = "next";
  }

  void TearDown() override { SetLogLevel(LogLevel::kWarning); }

  // Runs `action` on a copy of the store as it is now, once for each operation that it does, and fails that
  // one. Then `check` looks at the store through sound I/O.
  void FailEach(const std::function<absl::Status(Store&)>& action,
                const std::function<void(bool done)>& check) {
    const std::string model = folder_->path() + "/model";
    store_.reset();
    std::filesystem::rename(options_.path, model);
    for (FaultKind kind : {FaultKind::kError, FaultKind::kCrash}) {
      for (int fail_at = 1;; ++fail_at) {
        SCOPED_TRACE(absl::StrCat(kind == FaultKind::kError ? "error" : "crash", " at operation ", fail_at));
        RK_ASSERT_OK(RemoveTree(options_.path));
        std::filesystem::copy(model, options_.path, std::filesystem::copy_options::recursive);
        FaultIo io(fail_at, kind);
        StoreOptions faulty = options_;
        faulty.io = &io;
        faulty.worker_threads = 1;
        absl::Status status;
        {
          auto store = Store::Open(faulty);
          status = store.ok() ? action(**store) : store.status();
        }
        Reopen();
        check(status.ok());
        ExpectWhole();
        RK_ASSERT_OK(store_->Gc({}));
        check(status.ok());
        ExpectWhole();
        EXPECT_TRUE(ListDirectory(options_.path + "/tmp")->empty());
        EXPECT_EQ(ListDirectory(options_.path + "/packs")->size(), store_->Stats()->packs);
        store_.reset();
        if (HasFailure()) return;
        if (io.operations() < fail_at) {
          EXPECT_TRUE(status.ok()) << status;
          EXPECT_GT(fail_at, 5);
          break;
        }
      }
    }
  }

  TestImage base_, next_;
};

TEST_F(StoreFaultTest, CommitIsAllOrNothing) {
  Reopen();
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  FailEach([&](Store& store) { return next_.Commit(store, "job:2", "job:1").status(); },
           [&](bool done) {
             base_.ExpectIn(*store_, "job:1");
             bool visible = store_->Find("job:2").ok();
             EXPECT_TRUE(visible || !done);
             if (visible) next_.ExpectIn(*store_, "job:2");
           });
}

TEST_F(StoreFaultTest, ACommitThatMergesTheIndexIsAllOrNothing) {
  Reopen();
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  for (int i = 0; i < 7; ++i) {
    TestImage small;
    small.objects["m"][0] = MakePages(3, 50 + i);
    RK_ASSERT_OK(small.Commit(*store_, absl::StrCat("small:", i)));
  }
  FailEach([&](Store& store) { return next_.Commit(store, "job:2", "job:1").status(); },
           [&](bool done) {
             base_.ExpectIn(*store_, "job:1");
             bool visible = store_->Find("job:2").ok();
             EXPECT_TRUE(visible || !done);
             if (visible) next_.ExpectIn(*store_, "job:2");
           });
}

TEST_F(StoreFaultTest, GcLosesNothing) {
  Reopen();
  TestImage gone;
  gone.objects["m"][0] = MakePages(50, 77);
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(next_.Commit(*store_, "job:2", "job:1"));
  RK_ASSERT_OK(gone.Commit(*store_, "gone"));
  RK_ASSERT_OK(store_->Remove("job:1"));
  RK_ASSERT_OK(store_->Remove("gone"));
  FailEach([&](Store& store) { return store.Gc({}).status(); },
           [&](bool) { next_.ExpectIn(*store_, "job:2"); });
}

TEST_F(StoreFaultTest, RemoveIsAllOrNothing) {
  Reopen();
  RK_ASSERT_OK(base_.Commit(*store_, "job:1"));
  RK_ASSERT_OK(next_.Commit(*store_, "job:2", "job:1"));
  FailEach([&](Store& store) { return store.Remove("job:1"); },
           [&](bool done) {
             next_.ExpectIn(*store_, "job:2");
             const bool there = store_->Find("job:1").ok();
             EXPECT_TRUE(!there || !done);
             if (there) base_.ExpectIn(*store_, "job:1");
           });
}

}  // namespace
}  // namespace rekindle::store
