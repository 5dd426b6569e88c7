#include "ckpt/image_staging.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/timed_await.h"

namespace rekindle::ckpt {
namespace {

constexpr char kLastFile[] = "inventory.img";  // the last one that a dump opens
// They have been written when the dump ends; what remains is in pipes.
constexpr absl::Duration kFilesMayTake = absl::Seconds(5);
constexpr int kLargePipeBytes = 4 << 20;
constexpr int kPipeBytesWithoutPrivilege = 1 << 20;

bool IsPages(absl::string_view file_name) { return absl::StartsWith(file_name, "pages-"); }

// Returns the size that the pipe has afterwards.
size_t Enlarge(int pipe) {
  for (int bytes : {kLargePipeBytes, kPipeBytesWithoutPrivilege}) {
    int got = ::fcntl(pipe, F_SETPIPE_SZ, bytes);
    if (got > 0) return static_cast<size_t>(got);
  }
  return 64 << 10;
}

// One pages image being drained by several threads. The pipe's lock is held while read() copies, so two
// readers of one pipe take turns; instead each moves a piece of it to a pipe of its own, by reference, and
// copies from there while the other one does the same.
class PagesDrain {
 public:
  // Ends early, with an error, once `*abandoned`.
  PagesDrain(int pipe, StagingArena* arena, const std::atomic<bool>* abandoned,
             std::atomic<uint64_t>* progress)
      : pipe_(pipe), arena_(arena), abandoned_(abandoned), progress_(progress) {}

  absl::Status Run(size_t threads) {
    size_t pipe_bytes = Enlarge(pipe_);
    InParallel(threads, [&](size_t) { Work(pipe_bytes); });
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

  Pieces TakePieces() {
    absl::MutexLock lock(&mutex_);
    return std::move(pieces_);
  }

 private:
  // Room for a piece that was just moved out of the pipe: in one part, or two where a block ends.
  struct Room {
    absl::Span<std::byte> parts[2];
  };

  void Work(size_t pipe_bytes) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoStatus(errno, "making a pipe to drain pages"));
    UniqueFd read_end(ends[0]), write_end(ends[1]);
    Enlarge(write_end.get());
    for (;;) {
      Room room;
      size_t bytes = 0;
      {
        absl::MutexLock lock(&mutex_);
        if (ended_ || !failure_.ok()) return;
        if (abandoned_->load(std::memory_order_relaxed)) {
          failure_ = absl::CancelledError("draining pages from CRIU was given up");
          return;
        }
        ssize_t n;
        do {
          n = ::splice(pipe_, nullptr, write_end.get(), nullptr, pipe_bytes, SPLICE_F_MOVE);
        } while (n < 0 && errno == EINTR);
        if (n < 0) {
          failure_ = ErrnoStatus(errno, "draining pages from CRIU");
          return;
        }
        if (n == 0) {
          ended_ = true;
          return;
        }
        bytes = static_cast<size_t>(n);
        absl::Status status = Reserve(bytes, &room);
        if (!status.ok()) {
          failure_ = status;
          return;
        }
      }
      for (absl::Span<std::byte> part : room.parts) {
        if (part.empty()) continue;
        absl::Status status = Fill(read_end.get(), part);
        if (!status.ok()) return Fail(status);
      }
      progress_->fetch_add(bytes, std::memory_order_relaxed);
    }
  }

  absl::Status Reserve(size_t bytes, Room* room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (absl::Span<std::byte>& part : room->parts) {
      if (bytes == 0) break;
      if (block_.empty()) {
        auto next = arena_->NextBlock();
        if (!next.ok()) return next.status();
        block_ = *next;
      }
      part = block_.subspan(0, bytes);
      block_.remove_prefix(part.size());
      bytes -= part.size();
      // Neighbouring parts grow into one piece.
      if (!pieces_.empty() && pieces_.back().data() + pieces_.back().size() == part.data()) {
        pieces_.back() = {pieces_.back().data(), pieces_.back().size() + part.size()};
      } else {
        pieces_.push_back(part);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Fill(int pipe, absl::Span<std::byte> part) {
    while (!part.empty()) {
      ssize_t n = ::read(pipe, part.data(), part.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return ErrnoStatus(n < 0 ? errno : EIO, "copying pages from CRIU");
      part.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  void Fail(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = std::move(status);
  }

  const int pipe_;
  StagingArena* const arena_;
  const std::atomic<bool>* const abandoned_;
  std::atomic<uint64_t>* const progress_;
  absl::Mutex mutex_;
  absl::Span<std::byte> block_ ABSL_GUARDED_BY(mutex_);
  Pieces pieces_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

static_assert(StagingArena::kBlockBytes >= static_cast<size_t>(kLargePipeBytes),
              "a piece of one pipe must fit the rest of one block and a second block");

}  // namespace

void ImageStaging::Announced(const std::string& file_name) {
  absl::MutexLock lock(&mutex_);
  if (file_name == kLastFile) last_announced_ = true;
  ++(IsPages(file_name) ? pages_open_ : files_open_);
}

absl::Status ImageStaging::Drain(const std::string& file_name, UniqueFd pipe) {
  absl::Status status =
      IsPages(file_name) ? DrainPages(file_name, pipe.get()) : DrainSmall(file_name, pipe.get());
  pipe.Reset();
  Finished(file_name, status);
  return status;
}

absl::Status ImageStaging::DrainPages(const std::string& file_name, int pipe) {
  PagesDrain drain(pipe, arena_, &abandoned_, &bytes_staged_);
  if (absl::Status status = drain.Run(drain_threads_); !status.ok()) {
    return Annotate(status, absl::StrCat("receiving ", file_name));
  }
  absl::MutexLock lock(&mutex_);
  staged_.pages[file_name] = drain.TakePieces();
  return absl::OkStatus();
}

absl::Status ImageStaging::DrainSmall(const std::string& file_name, int pipe) {
  std::string content;
  for (;;) {
    char buffer[16384];
    ssize_t n = ::read(pipe, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("draining ", file_name, " from CRIU"));
    if (n == 0) break;
    const auto bytes = static_cast<uint64_t>(n);
    if (file_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes > most_file_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "what the image has beside the job's memory, contents of deleted files that the job has open above "
          "all, is more than ",
          FormatBytes(most_file_bytes_),
          ", the part of the memory that is free here that is for it. Let the job close such files (`ls -l "
          "/proc/PID/fd` calls them deleted), or make memory free, then take the checkpoint again"));
    }
    content.append(buffer, static_cast<size_t>(n));
    bytes_staged_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
  }
  absl::MutexLock lock(&mutex_);
  staged_.files[file_name] = std::move(content);
  return absl::OkStatus();
}

void ImageStaging::Finished(const std::string& file_name, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  --(IsPages(file_name) ? pages_open_ : files_open_);
  if (failure_.ok()) failure_ = status;
}

absl::Status ImageStaging::WaitUntilPagesAreOurs() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ImageStaging::DoneOrFailed));
  return failure_;
}

absl::Status ImageStaging::LookAtFiles(
    const std::function<void(const std::map<std::string, std::string>&)>& look) {
  absl::MutexLock lock(&mutex_);
  if (!AwaitUntil(mutex_, absl::Condition(this, &ImageStaging::FilesHereOrFailed), Deadline(kFilesMayTake))) {
    return absl::DeadlineExceededError("CRIU has not closed all of its image files");
  }
  if (failure_.ok()) look(staged_.files);
  return failure_;
}

void ImageStaging::Abandon(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = std::move(why);
  abandoned_.store(true, std::memory_order_relaxed);
}

StagedImage ImageStaging::Take() {
  absl::MutexLock lock(&mutex_);
  return std::move(staged_);
}

}  // namespace rekindle::ckpt
