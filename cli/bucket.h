// A folder of an object store (S3, GCS, Azure, …), or of whatever else rclone(1) reaches. rclone runs as the
// calling user, with his remotes (~/.config/rclone/rclone.conf, RCLONE_CONFIG_…).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

namespace rekindle::cli {

struct BucketObject {
  std::string name;
  uint64_t bytes = 0;
  absl::Time written = absl::InfiniteFuture();  // the last time; as long as nobody has asked: not known
};

// An object on its way, by an rclone of its own, which is ended when this goes out of scope before Finish.
// What was being put may then be there in part; not in a folder of this machine, where it has its name once
// it is whole.
class BucketTransfer {
 public:
  virtual ~BucketTransfer() = default;
  // What the object is read from.
  virtual int fd() const = 0;
  // To be asked while nothing comes from there, which has been so for `waited`: rclone has stalled, and was
  // ended; Finish says so.
  virtual bool EndIfStalled(absl::Duration waited) = 0;
  // Blocks while rclone is busy. False: it takes no more; Finish says why.
  virtual bool Write(absl::string_view data) = 0;
  // Of an object that is put: all of it was written, and OK means that it is there, in a folder of this
  // machine on its disk, too. Of one that is read: after its end, and OK means that this was its end.
  virtual absl::Status Finish() = 0;
};

// One call or transfer at a time; Cancel may come from any thread. Errors: FailedPrecondition when there is
// no rclone, or the folder on this machine is not there, NotFound when there is no such object, Cancelled,
// else Unavailable with what rclone says, or that it has moved nothing for StallPatience and was ended.
class Bucket {
 public:
  // As rclone names it: "REMOTE:PATH", or a path on this machine. `most_patience`: see StallPatience, no more
  // than that.
  explicit Bucket(std::string location, absl::Duration most_patience = absl::InfiniteDuration())
      : location_(std::move(location)), most_patience_(most_patience) {}

  const std::string& location() const { return location_; }
  // A folder of this machine, in which an object has its name once it is whole?
  bool is_folder_here() const { return !location_.empty() && location_[0] == '/'; }

  enum class Times { kUnknown, kAsked };
  // What is in a folder below it, folders excepted. NotFound: no such folder, or where that would be is not
  // there either; of a path on this machine, which may have to be mounted, that is FailedPrecondition.
  absl::StatusOr<std::vector<BucketObject>> List(const std::string& folder, Times times = Times::kUnknown);
  // What is in all folders below, by one call; names with their folders. Images and what belongs to them
  // alone.
  absl::StatusOr<std::vector<BucketObject>> ListImageObjects();
  // `most_bytes`: it is no longer than that.
  absl::StatusOr<std::unique_ptr<BucketTransfer>> Put(const std::string& object, uint64_t most_bytes);
  absl::StatusOr<std::unique_ptr<BucketTransfer>> Get(const std::string& object);
  // What these objects of a folder hold, one after the other, in no order.
  absl::StatusOr<std::string> Read(const std::string& folder, const std::vector<std::string>& names);
  absl::Status Remove(const std::string& folder, const std::vector<std::string>& names);

  // Ends what is under way, and all that comes later.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Command;
  class Transfer;
  absl::StatusOr<std::unique_ptr<Command>> Start(const std::string& verb, std::vector<std::string> arguments,
                                                 const std::string& path, int in, int out,
                                                 uint64_t most_bytes = 0) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::unique_ptr<Command>> Start(const std::string& what, SubprocessOptions options,
                                                 absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RunHere(std::vector<std::string> command);
  absl::Status BringToDisk(const std::string& path);
  // In place of what has that name, if anything has.
  absl::Status GiveName(const std::string& part, const std::string& path);
  std::string PathOf(absl::string_view below) const;
  absl::StatusOr<std::vector<BucketObject>> List(const std::string& folder, Times times,
                                                 std::vector<std::string> arguments);
  absl::Status CheckIsThere();

  const std::string location_;
  const absl::Duration most_patience_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  UniqueFd running_ ABSL_GUARDED_BY(mutex_);  // a pidfd
};

}  // namespace rekindle::cli
