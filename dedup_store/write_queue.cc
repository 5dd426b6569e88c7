#include "dedup_store/write_queue.h"

#include <liburing.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/direct_buffer.h"

#ifdef ABSL_HAVE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace rekindle::store {

absl::Status WriteAll(int fd, const std::string& path, const std::byte* data, size_t bytes, uint64_t offset) {
  while (bytes > 0) {
    ssize_t n = pwrite(fd, data, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FileError(n < 0 ? errno : EIO, "writing", path, fd);
    data += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

namespace {

// Below this a ring and pinned buffers cost more than they bring.
constexpr size_t kMinRingBuffers = 3;

// Memory of a pool that is gone, for the next large one: fresh pages have to be taken and zeroed first, which
// costs more than it looks. The kernel may have them back in the meantime. One is kept in a process.
class KeptMemory {
 public:
  static constexpr size_t kLeast = 8 << 20;

  // {nullptr, 0}: there is none that is so large.
  static std::pair<void*, size_t> Take(size_t bytes) {
    KeptMemory& kept = The();
    absl::MutexLock lock(&kept.mutex_);
    if (kept.bytes_ < bytes) return {nullptr, 0};
    return {std::exchange(kept.base_, nullptr), std::exchange(kept.bytes_, 0)};
  }
  static void GiveOrUnmap(void* base, size_t bytes) {
    if (bytes >= kLeast && madvise(base, bytes, MADV_FREE) == 0) {
      KeptMemory& kept = The();
      absl::MutexLock lock(&kept.mutex_);
      if (bytes > kept.bytes_) {
        std::swap(base, kept.base_);
        std::swap(bytes, kept.bytes_);
      }
    }
    if (base != nullptr) munmap(base, bytes);
  }

 private:
  static KeptMemory& The() {
    static auto* kept = new KeptMemory;
    return *kept;
  }
  absl::Mutex mutex_;
  void* base_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Page-aligned buffers, on huge pages where there are any: pinning and zeroing them is then cheap.
class BufferPool {
 public:
  static absl::StatusOr<std::unique_ptr<BufferPool>> Make(size_t buffer_bytes, size_t count) {
    constexpr size_t kHuge = 2 << 20;
    size_t bytes = buffer_bytes * count;
    size_t mapped = bytes >= kHuge ? bytes + kHuge : bytes;
    void* base = nullptr;
    if (mapped >= KeptMemory::kLeast) {
      auto [kept, kept_bytes] = KeptMemory::Take(mapped);
      if (kept != nullptr) base = kept, mapped = kept_bytes;
    }
    if (base == nullptr)
      base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
      return ErrnoStatus(errno, absl::StrCat("getting ", bytes, " bytes of write buffers"));
    auto pool = std::unique_ptr<BufferPool>(new BufferPool);
    pool->base_ = base;
    pool->mapped_ = mapped;
    auto start = reinterpret_cast<uintptr_t>(base);
    if (bytes >= kHuge) {
      start = (start + kHuge - 1) & ~(kHuge - 1);
      (void)madvise(reinterpret_cast<void*>(start), bytes, MADV_HUGEPAGE);
    }
    for (size_t i = 0; i < count; ++i) {
      pool->buffers_.push_back({reinterpret_cast<std::byte*>(start + i * buffer_bytes), buffer_bytes, i});
    }
    return pool;
  }
  ~BufferPool() { KeptMemory::GiveOrUnmap(base_, mapped_); }
  std::vector<WriteBuffer>& buffers() { return buffers_; }

 private:
  BufferPool() = default;
  void* base_ = nullptr;
  size_t mapped_ = 0;
  std::vector<WriteBuffer> buffers_;
};

class PlainQueue : public WriteQueue {
 public:
  PlainQueue(int fd, std::string path, std::unique_ptr<BufferPool> pool)
      : fd_(fd), path_(std::move(path)), pool_(std::move(pool)) {
    for (WriteBuffer& b : pool_->buffers()) free_.push_back(&b);
  }
  absl::StatusOr<WriteBuffer*> Acquire() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &PlainQueue::HasFree));
    if (!status_.ok()) return status_;
    WriteBuffer* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  absl::Status Submit(WriteBuffer* buffer, size_t bytes, uint64_t offset) override {
    absl::Status status = WriteAll(fd_, path_, buffer->data, bytes, offset);
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    free_.push_back(buffer);
    return status;
  }
  absl::Status Drain() override {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  bool HasFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !free_.empty() || !status_.ok(); }
  const int fd_;
  const std::string path_;
  std::unique_ptr<BufferPool> pool_;
  absl::Mutex mutex_;
  std::vector<WriteBuffer*> free_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// liburing unmaps and maps rings without the C library, so ThreadSanitizer takes a ring at the address of one
// that is gone for the same memory, and its two owners for a race. These tell it that rings come after one
// another.
#ifdef ABSL_HAVE_THREAD_SANITIZER
char ring_order;
void RingBegins() { __tsan_acquire(&ring_order); }
void RingEnds() { __tsan_release(&ring_order); }
#else
void RingBegins() {}
void RingEnds() {}
#endif

class RingQueue : public WriteQueue {
 public:
  static absl::StatusOr<std::unique_ptr<RingQueue>> Make(int fd, const std::string& path,
                                                         std::unique_ptr<BufferPool>& pool) {
    auto queue = std::unique_ptr<RingQueue>(new RingQueue(fd, path));
    int error = io_uring_queue_init(static_cast<unsigned>(pool->buffers().size()), &queue->ring_, 0);
    if (error != 0) return ErrnoStatus(-error, "setting up io_uring");
    RingBegins();
    queue->ring_ready_ = true;
    std::vector<iovec> vectors;
    {
      absl::MutexLock lock(&queue->mutex_);
      for (WriteBuffer& b : pool->buffers()) {
        vectors.push_back({b.data, b.capacity});
        queue->free_.push_back(&b);
      }
      queue->jobs_.resize(vectors.size());
    }
    // Registering pins memory, which a small RLIMIT_MEMLOCK forbids; ordinary writes do then.
    queue->registered_ =
        io_uring_register_buffers(&queue->ring_, vectors.data(), static_cast<unsigned>(vectors.size())) == 0;
    queue->pool_ = std::move(pool);
    return queue;
  }
  ~RingQueue() override {
    if (!ring_ready_) return;
    // The kernel may still be reading from the buffers.
    (void)Drain();
    RingEnds();
    io_uring_queue_exit(&ring_);
  }

  absl::StatusOr<WriteBuffer*> Acquire() override {
    absl::ReleasableMutexLock lock(&mutex_);
    while (status_.ok() && free_.empty()) WaitForOne();
    if (!status_.ok()) return status_;
    WriteBuffer* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }

  absl::Status Submit(WriteBuffer* buffer, size_t bytes, uint64_t offset) override {
    absl::MutexLock lock(&mutex_);
    jobs_[buffer->index] = {buffer, bytes, offset};
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return absl::InternalError("io_uring has fewer slots than there are buffers");
    if (registered_) {
      io_uring_prep_write_fixed(sqe, fd_, buffer->data, static_cast<unsigned>(bytes), offset,
                                static_cast<int>(buffer->index));
    } else {
      io_uring_prep_write(sqe, fd_, buffer->data, static_cast<unsigned>(bytes), offset);
    }
    sqe->user_data = buffer->index;
    ++in_flight_;
    int submitted;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    if (submitted < 0) {
      --in_flight_;
      free_.push_back(buffer);
      status_.Update(FileError(-submitted, "writing", path_, fd_));
    }
    return status_;
  }

  absl::Status Drain() override {
    absl::MutexLock lock(&mutex_);
    while (in_flight_ > 0) WaitForOne();
    return status_;
  }

 private:
  struct Job {
    WriteBuffer* buffer;
    size_t bytes;
    uint64_t offset;
  };

  RingQueue(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  // One thread waits in the kernel without the mutex; the others wait for what it brings.
  void WaitForOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (waiting_) {
      uint64_t seen = completions_;
      auto changed = [this, seen]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return completions_ != seen || !waiting_; };
      mutex_.Await(absl::Condition(&changed));
      return;
    }
    waiting_ = true;
    mutex_.Unlock();
    io_uring_cqe* cqe = nullptr;
    int error;
    do {
      error = io_uring_wait_cqe(&ring_, &cqe);
    } while (error == -EINTR);
    mutex_.Lock();
    waiting_ = false;
    ++completions_;
    if (error != 0) {
      status_.Update(ErrnoStatus(-error, absl::StrCat("waiting for writes to ", path_)));
      in_flight_ = 0;
      return;
    }
    Complete(jobs_[cqe->user_data], cqe->res);
    io_uring_cqe_seen(&ring_, cqe);
  }

  void Complete(const Job& job, int result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    --in_flight_;
    free_.push_back(job.buffer);
    // The kernel calls off what a thread has submitted and waits its turn when the thread ends.
    const bool not_begun = result == -EAGAIN || result == -EINTR || result == -ECANCELED;
    if (result < 0 && !not_begun) {
      status_.Update(FileError(-result, "writing", path_, fd_));
      return;
    }
    size_t done = result < 0 ? 0 : static_cast<size_t>(result);
    if (done == job.bytes) return;
    // A short write is nearly always a full disk; the retry gets the reason.
    done = DirectFloor(done);
    status_.Update(WriteAll(fd_, path_, job.buffer->data + done, job.bytes - done, job.offset + done));
  }

  const int fd_;
  const std::string path_;
  std::unique_ptr<BufferPool> pool_;
  io_uring ring_{};
  bool ring_ready_ = false;
  bool registered_ = false;
  absl::Mutex mutex_;
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<WriteBuffer*> free_ ABSL_GUARDED_BY(mutex_);
  size_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t completions_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<WriteQueue>> MakeWriteQueue(int fd, const std::string& path,
                                                           size_t buffer_bytes, size_t buffers) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BufferPool> pool, BufferPool::Make(buffer_bytes, buffers));
  if (buffers >= kMinRingBuffers) {
    auto ring = RingQueue::Make(fd, path, pool);
    if (ring.ok()) return std::move(ring).value();
    static std::atomic<bool> logged{false};
    if (!logged.exchange(true)) {
      Log(LogLevel::kWarning,
          absl::StrCat(ring.status().message(), "; the store writes with pwrite() instead"));
    }
  }
  return std::make_unique<PlainQueue>(fd, path, std::move(pool));
}

}  // namespace rekindle::store
