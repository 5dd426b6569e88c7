// The jobs that Rekindle started or restored, as small JSON files in the runtime directory: every Rekindle
// process of the machine sees them, whoever hosts the service. A job's name is its key.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

struct JobRecord {
  std::string name;
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // with the PID and the boot id it names one process
  std::string boot_id;
  std::string command;
  uid_t owner = 0;
  int64_t started_unix_ns = 0;
  std::string image;  // it was restored from, or the last one taken of it
  std::string log;
  std::string instance;           // its sandbox; empty: it has none
  std::string mark;               // of its processes (job_mark.h); empty: none that is known
  std::optional<ExitState> exit;  // absent: runs, or nobody saw how it ended
  int64_t exited_unix_ns = 0;     // also where it ended and nobody can tell how; 0: not recorded
  // The process that ends it again unless it hears that it is kept; 0: it is.
  pid_t provisional_of = 0;
  uint64_t provisional_of_start_ticks = 0;
};

// Thread-safe; several processes may use one directory.
class JobRegistry {
 public:
  // How long the record of an ended job is kept.
  static constexpr int64_t kKeepEndedNanos = 24LL * 3600 * 1000 * 1000 * 1000;
  // Of so many of one owner, the latest; half as many more may be there until they are looked through.
  static constexpr size_t kMostEndedOfOne = 1000;

  // `directory` is made on first write, for its owner alone.
  explicit JobRegistry(std::string directory) : directory_(std::move(directory)) {}

  // Records a job that runs: fills in start_ticks and boot_id, cuts a long command. An empty `name` becomes
  // one made from `command`; `unique_name` adds a number where the name is a running job's, else that is
  // AlreadyExists. `replaced`, which may be null, gets the record of an ended job that had the name.
  absl::StatusOr<JobRecord> Add(JobRecord record, bool unique_name,
                                std::optional<JobRecord>* replaced = nullptr);
  // AlreadyExists when a running job has this name, or a record that can't be read, whose job may run;
  // InvalidArgument when it is malformed.
  absl::Status CheckNameIsFree(absl::string_view name) const;

  // Newest first. Ended jobs are in it for a day. Records that can't be read are logged once. Those that have
  // not changed are not read again.
  absl::StatusOr<std::vector<JobRecord>> List() const;
  // NotFound; FailedPrecondition: its record is damaged, or of a newer version.
  absl::StatusOr<JobRecord> FindByName(absl::string_view name) const;
  std::optional<JobRecord> FindRunning(pid_t pid) const;

  // These also where the folder's file system is full.
  absl::Status SetImage(const JobRecord& job, const std::string& image);
  absl::Status SetKept(const JobRecord& job);  // no longer provisional
  // Nothing: nobody can tell how it ended, unless somebody has.
  absl::Status SetExit(const JobRecord& job, const std::optional<ExitState>& exit);

  // Removes the record of one that was never begun; `before` is there again, which it had replaced.
  void Forget(const JobRecord& job, const std::optional<JobRecord>& before);

  // Does the very process of the record still exist (zombies do not count)?
  static bool Lives(const JobRecord& job);
  // Does its number still mean it, be it as a zombie? False also where nobody can tell.
  static bool IsThere(const JobRecord& job);
  // Provisional, and nobody is left to hear that it is kept.
  static bool IsForsaken(const JobRecord& job);

 private:
  // What changes when a file is written or replaced.
  struct Stamp {
    uint64_t inode = 0;
    int64_t size = 0, modified_ns = 0, changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  struct FileOfJob {
    std::string path;
    Stamp stamp;
    JobRecord job;
  };
  using FilesOfJobs = std::vector<std::shared_ptr<const FileOfJob>>;

  absl::Status Write(const JobRecord& record) const;
  // An error for want of room, with what there has to be room for.
  absl::Status WithCureForRoom(const absl::Status& status) const;
  // The same out of the room that is kept for it.
  absl::Status WriteWithoutRoom(const JobRecord& record) const;
  void KeepRoom() const;
  static std::optional<Stamp> StampOf(const std::string& path);
  absl::StatusOr<FilesOfJobs> Read() const ABSL_LOCKS_EXCLUDED(remembered_mutex_);
  void WarnOnce(const std::string& path, const std::string& what) const ABSL_LOCKS_EXCLUDED(warned_mutex_);
  // Under the lock.
  void ForgetOldest();
  std::string PathOf(absl::string_view name) const;
  // The threads of this process wait for each other in turn and as long as it takes, others' processes only
  // for a while.
  struct Held {
    std::unique_lock<std::mutex> here;
    UniqueFd file;
  };
  absl::StatusOr<Held> Lock() const;
  // Under the lock. Nothing: it is not that of this very process any more.
  absl::StatusOr<std::optional<JobRecord>> OnDisk(const JobRecord& job) const;
  // Changes the record on disk if it is still that.
  template <typename Change>
  absl::Status Update(const JobRecord& job, Change change);

  const std::string directory_;
  mutable std::mutex here_;
  mutable absl::Mutex warned_mutex_;
  mutable std::map<std::string, std::string> warned_ ABSL_GUARDED_BY(warned_mutex_);  // by path
  using Remembered = std::map<std::string, std::shared_ptr<const FileOfJob>>;         // by path
  mutable absl::Mutex remembered_mutex_;
  mutable std::shared_ptr<const Remembered> remembered_ ABSL_GUARDED_BY(remembered_mutex_) =
      std::make_shared<const Remembered>();
  std::atomic<size_t> added_{0}, next_look_{0};  // since records were looked through, and until they are
};

// [A-Za-z0-9_][A-Za-z0-9._-]{0,63}; InvalidArgument says what is wrong.
absl::Status CheckJobName(absl::string_view name);
// A well-formed name from a command line: its program's last path component.
std::string JobNameFromCommand(absl::string_view command);
// A name for images of a job: its own, or the most like it that they can have.
std::string ImageNameOf(absl::string_view job_name);

}  // namespace rekindle::daemon
