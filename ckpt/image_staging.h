// Takes the image files of a streamed dump into memory while the job is frozen: pages into the arena, the
// small files into strings.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "criu/capture_server.h"

namespace rekindle::ckpt {

// Thread-safe, as the capture server requires.
class ImageStaging : public criu::ImageFileConsumer {
 public:
  // Drains each pages image from `drain_threads` threads at once. The arena must outlive this. All other
  // files are at most `most_file_bytes` together: they are held in memory, and the contents of deleted files
  // that the job has open, which are among them, have no other bound.
  ImageStaging(StagingArena* arena, size_t drain_threads,
               uint64_t most_file_bytes = std::numeric_limits<uint64_t>::max())
      : arena_(arena), drain_threads_(drain_threads), most_file_bytes_(most_file_bytes) {}

  void Announced(const std::string& file_name) override;
  absl::Status Drain(const std::string& file_name, UniqueFd pipe) override;

  // Blocks until CRIU has announced its last image file and every pages image was read to its end: from then
  // on nothing that was staged refers to the job's own memory. An error when a file failed or Abandon was
  // called.
  absl::Status WaitUntilPagesAreOurs();
  // Calls `look` with the small files by name, once CRIU has sent all of them. DeadlineExceeded: it keeps one
  // open.
  absl::Status LookAtFiles(const std::function<void(const std::map<std::string, std::string>&)>& look);
  // Ends the waits, and every drain of pages soon, which makes CRIU give up.
  void Abandon(absl::Status why);

  uint64_t bytes_staged() const { return bytes_staged_.load(std::memory_order_relaxed); }

  // All that was received. Call when no Drain runs any more.
  StagedImage Take();

 private:
  absl::Status DrainPages(const std::string& file_name, int pipe);
  absl::Status DrainSmall(const std::string& file_name, int pipe);
  void Finished(const std::string& file_name, const absl::Status& status);
  bool DoneOrFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || (last_announced_ && pages_open_ == 0);
  }

  bool FilesHereOrFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || (last_announced_ && files_open_ == 0);
  }

  StagingArena* const arena_;
  const size_t drain_threads_;
  const uint64_t most_file_bytes_;
  std::atomic<uint64_t> bytes_staged_{0}, file_bytes_{0};
  std::atomic<bool> abandoned_{false};
  absl::Mutex mutex_;
  StagedImage staged_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool last_announced_ ABSL_GUARDED_BY(mutex_) = false;
  int pages_open_ ABSL_GUARDED_BY(mutex_) = 0, files_open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rekindle::ckpt
