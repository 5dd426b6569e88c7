// The log of one instance of a function: what it writes to its standard output and error, and between that
// the daemon's lines about each invocation, in the words of AWS Lambda.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"

namespace rekindle::functions {

struct InvocationReport {
  std::string request_id;
  double duration_seconds = 0;  // of the handler
  uint64_t memory_limit_bytes = 0;
  uint64_t most_memory_bytes = 0;
  std::optional<double> init_seconds;  // of the first invocation of an instance that was started for it
  std::string status;                  // "timeout", "error"; empty: none, as when all went well
};

struct StartReport {
  double duration_seconds = 0;
  std::string error_type;  // "Runtime.ExitError"; empty: it is not known
  bool timed_out = false;
};

// Thread-safe. Nothing here fails for who runs the function: what can't be written is lost, and the daemon's
// log says so once.
//
// A log keeps its offsets for life. What is over the limit goes from its beginning, which becomes a hole: a
// file may look larger than what it takes on disk. Where the file system has no holes, it begins anew.
class LogStream {
 public:
  static constexpr uint64_t kMostBytes = uint64_t{16} << 20;  // then the older part goes
  static constexpr uint64_t kKeptBytes = uint64_t{8} << 20;   // so much is left
  static constexpr size_t kTailBytes = 4096;                  // as in Lambda's X-Amz-Log-Result

  // Makes PATH.log and PATH.times, `owner`'s alone, or goes on with them.
  static absl::StatusOr<std::shared_ptr<LogStream>> Open(const std::string& path, const Owner& owner);

  // For the instance's standard output and error.
  absl::StatusOr<UniqueFd> OpenForInstance() const;

  // "START RequestId: …". Returns where in the log it begins.
  uint64_t Begin(absl::string_view request_id) ABSL_LOCKS_EXCLUDED(mutex_);
  // "END RequestId: …" and "REPORT RequestId: …".
  void End(const InvocationReport& report) ABSL_LOCKS_EXCLUDED(mutex_);
  // "INIT_REPORT Init Duration: …": the instance's start came to nothing.
  void FailStart(const StartReport& report) ABSL_LOCKS_EXCLUDED(mutex_);
  // A line of its own, such as "RequestId: … Error: Runtime exited with error: exit status 1".
  void Note(absl::string_view text) ABSL_LOCKS_EXCLUDED(mutex_);

  // The last 4 KiB of what was written since `offset`, from the beginning of a line if one begins there.
  std::string TailSince(uint64_t offset) const;

  // Keeps the log within its limit. To be called now and then: instances write without asking. Begin does it
  // too.
  void Trim() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string& path() const { return path_; }  // without ".log"

 private:
  LogStream(std::string path, UniqueFd file, UniqueFd append, UniqueFd times);
  uint64_t Append(std::string lines) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddTime(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TrimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetTimesBefore(uint64_t offset) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lost(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const UniqueFd file_;
  mutable absl::Mutex mutex_;
  const UniqueFd append_;  // with an offset that nobody else moves
  UniqueFd times_ ABSL_GUARDED_BY(mutex_);
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
};

// A record of PATH.times: from this offset of the log on, until the next one's, it was written at this time
// or later.
struct LogTime {
  uint64_t offset = 0;
  int64_t unix_ns = 0;
};
// More of them are not looked at: their file is the function's owner's, who can make it any size.
inline constexpr uint64_t kMostTimes = uint64_t{1} << 20;

// Where the bytes of a log begin: 0, or the end of the hole that older ones have left.
uint64_t FirstByteOf(int log);

}  // namespace rekindle::functions
