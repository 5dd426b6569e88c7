// The daemon's side of the file through which a supervised job says how far it is, and waits at a step's
// boundary for an image (proto/rekindle/v1/job_file.h has its layout, hook/job_file.c the job's side).
//
// To take an image at a boundary: SetDue(), WaitForChange() until Read().job.waiting is that number or the
// patience ends, take the image, Release(). To bring the job back: Create(), MarkRestored(), restore. A job
// that is in the middle of a call when it is frozen has the file open: it has to be there, with its size,
// when it is restored.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/file_watch.h"
#include "proto/rekindle/v1/job_file.h"

namespace rekindle::daemon {

// Movable. Not thread-safe; several objects, in several processes, may read one file, one may write.
// The file belongs to the job's user, who may do to it whatever he likes: what is read is only what he says.
class JobFile {
 public:
  // Makes the file, with its folder, for the job's user. Where it is there already, it is kept, with what the
  // job said; whoever waits there for an image that an earlier daemon wanted is released. One that is not
  // ours (another owner or kind, no such content) is replaced.
  static absl::StatusOr<JobFile> Create(const std::string& path, uid_t uid, gid_t gid);

  // Of the job with this mark (job_mark.h); of earlier versions it was its name.
  static std::string PathOf(absl::string_view runtime_directory, absl::string_view mark);
  // No error when it is gone already.
  static absl::Status Remove(const std::string& path);

  // What is in the file. NotFound when it is gone; DataLoss when it is no such file (any more).
  absl::StatusOr<rekindle_job_file> Read() const { return ReadAt(path_); }
  static absl::StatusOr<rekindle_job_file> ReadAt(const std::string& path);

  // An image is due: the job is to wait at its next boundary. Returns the number for which it waits then. To
  // refuse what the job asked for (job.wanted grew), call this and Release(false).
  absl::StatusOr<uint64_t> SetDue();
  // The job is to go on: the image of the last SetDue() was taken, or will not be. Harmless without one.
  absl::Status Release(bool image_taken);
  // The image is being stored, and the job is to wait for that. To be called more often than every second:
  // it is told once a second, and whoever is told no more gives the image up in the end.
  absl::Status KeepWaiting();
  // Forgets what the job said: it begins from its beginning.
  absl::Status ForgetJob() const;
  // To be called before the job is restored: whoever waits in the image learns that he is back.
  absl::Status MarkRestored();

  // Until the file was written to, this side's writes included (at once, when that was since the last call),
  // or `timeout`: false then. May return early where the machine has no inotify to spare.
  bool WaitForChange(absl::Duration timeout);
  // See FileWatch::OnChange. False: whoever wants to know has to look.
  bool OnChange(std::function<void()> told) { return watch_ != nullptr && watch_->OnChange(std::move(told)); }

  const std::string& path() const { return path_; }

 private:
  explicit JobFile(std::string path) : path_(std::move(path)) {}
  absl::Status Write() const;
  absl::Status WritePart(const void* part, size_t size, size_t offset) const;

  std::string path_;
  std::unique_ptr<FileWatch> watch_;  // null: the machine has none to spare
  rekindle_job_file_daemon ours_ = {};
  double kept_waiting_ = 0;  // when, in seconds of CLOCK_MONOTONIC
};

}  // namespace rekindle::daemon
