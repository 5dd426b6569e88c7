// The logs of all functions of a node: LOGS/functions/NAME/INSTANCE.log, each its owner's, in folders that
// others may enter but not list.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_rights.h"
#include "functions/log_reader.h"
#include "functions/log_stream.h"

namespace rekindle::functions {

// Thread-safe.
class FunctionLogs {
 public:
  // Of instances that have ended, so many of a function are kept: the last to be written to.
  static constexpr size_t kMostEnded = 32;

  // `logs`: the folder of all logs, which is made if it is not there.
  static absl::StatusOr<std::unique_ptr<FunctionLogs>> Open(const std::string& logs);

  // A log for a new instance, which lives as long as the pointer. `instance`: letters, digits, '.', '_' and
  // '-'. One of that name is continued.
  absl::StatusOr<std::shared_ptr<LogStream>> OpenStream(const std::string& function,
                                                        const std::string& instance, const Owner& owner)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps the logs of living instances within their limit, and removes older logs of ended ones: to be called
  // every second or so.
  void Tidy() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Read(const std::string& function, const LogReadOptions& options,
                    const LogLineSink& sink) const;

  // All logs of a function.
  absl::Status Remove(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of how many functions something is remembered.
  size_t known() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Whose starts wait for each other alone when the disk is slow. Its lock is taken before that of all.
  struct OfFunction {
    absl::Mutex mutex;
    bool folder_made ABSL_GUARDED_BY(mutex) = false;
    bool opened ABSL_GUARDED_BY(mutex) = false;  // a log, since it was tidied
    std::map<std::string, std::weak_ptr<LogStream>> living ABSL_GUARDED_BY(mutex);  // by instance
  };

  explicit FunctionLogs(std::string directory) : directory_(std::move(directory)) {}
  std::string FolderOf(const std::string& function) const { return directory_ + "/" + function; }
  absl::StatusOr<std::string> MakeFolder(const std::string& function) const;
  std::shared_ptr<OfFunction> LogsOf(const std::string& function) ABSL_LOCKS_EXCLUDED(mutex_);
  // One of which nothing is left, unless somebody is about to use it. With its lock.
  void Forget(const std::string& function, const std::shared_ptr<OfFunction>& logs)
      ABSL_LOCKS_EXCLUDED(mutex_);
  static void RemoveOldStreams(const std::string& folder, OfFunction& logs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(logs.mutex);

  const std::string directory_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<OfFunction>> functions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
