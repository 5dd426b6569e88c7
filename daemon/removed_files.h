// What a supervised job removes it looks for once more when it goes on from an image that is older: a
// training that keeps its last checkpoints removes each twice. So while they are there the job's files are
// given a second name each, in a hidden folder, and a roll-back gives those that are gone since the image
// their own back. That folder lies beside theirs, since trainings read which checkpoints there are from what
// is in it; where that can't be, in there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "rekindle/v1/supervised_job.pb.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::daemon {

// In a folder below which a job's files are looked for: where beside it there is no place for them, as on
// another file system, and what earlier versions have left.
std::string KeptFolderOf(const std::string& job);
// Beside the one of this name. No job's name has a '@', so that all of these are different.
std::string KeptFolderBeside(const std::string& job, absl::string_view folder_name);

// Of one job. Thread-safe. Everything is done with the rights of the job's user, on a thread of its own: a
// file system that does not answer (NFS whose server has gone) holds nobody up for longer than `patience`,
// and no further work is begun before that one has ended.
class RemovedFiles {
 public:
  struct Options {
    std::string job;                   // its name
    std::vector<std::string> folders;  // below which its files are looked for; absolute, none below another
    std::vector<std::string> ignored;  // files, and folders with all below them
    Owner user;                        // whose files count
    int64_t since_unix_ns = 0;         // older ones are not the job's
    uint32_t share_of_free = 8;        // one of so many parts of what is free on a disk they may take up
    absl::Duration patience = absl::Seconds(5);
  };

  explicit RemovedFiles(Options options);

  // What is there gets its second name: to be called when an image is about to be taken, and when it was.
  // Returns what its owner should know.
  // `begins_with_unix_ns`: the job is about to begin with an image of that moment: what was there then has
  // had its name then.
  std::vector<std::string> Keep(int64_t begins_with_unix_ns = INT64_MIN);
  // The same beside the caller, who does not wait: to be called while the job stands still for an image. What
  // it has made just before, and removes as soon as it goes on, nothing else sees.
  void KeepMeanwhile() ABSL_LOCKS_EXCLUDED(mutex_);
  // Until the last such is done, not longer than `patience`; not at all where none could begin, since an
  // earlier one hangs.
  void AwaitKept(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives what is gone since that moment its name back, where no other file has it; what was done.
  std::vector<v1::FileRollback> PutBack(int64_t image_unix_ns);
  // That no image from before that moment is needed any more. `ended`: nor is what is still there, which the
  // job does not remove now; who goes on from an image of it keeps it again.
  void Forget(int64_t oldest_image_unix_ns, bool ended = false);
  // None is.
  void ForgetAll();

 private:
  struct Work;  // under way
  struct Gone;
  // After what is under way. Null: it could not begin.
  std::shared_ptr<Work> Begin(std::function<void()> work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: it did not end in time, or could not begin.
  bool InTime(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<const Options> options_;
  const std::shared_ptr<Gone> gone_;
  absl::Mutex mutex_;
  std::shared_ptr<Work> last_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Work> meanwhile_ ABSL_GUARDED_BY(mutex_);  // the last that nobody waited for
  bool meanwhile_hangs_ ABSL_GUARDED_BY(mutex_) = false;     // when one was to begin it was under way
};

// Below the folders that its policy names. None where its files are not rolled back.
RemovedFiles::Options RemovedFilesOf(const v1::SupervisedJobRecord& record);

}  // namespace rekindle::daemon
