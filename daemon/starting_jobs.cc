#include "daemon/starting_jobs.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rekindle::daemon {
namespace {

// The file, whatever leads to it.
std::string LogKey(const std::string& log) {
  struct stat info;
  return ::stat(log.c_str(), &info) == 0 ? absl::StrCat(info.st_dev, ":", info.st_ino) : log;
}

}  // namespace

absl::StatusOr<std::shared_ptr<void>> StartingJobs::TakeName(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  if (!names_.insert(name).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("a job named '", name, "' is just being started: choose another --name"));
  }
  return std::shared_ptr<void>(nullptr, [this, name](void*) {
    absl::MutexLock dropped(&mutex_);
    names_.erase(name);
  });
}

bool StartingJobs::HasName(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return names_.contains(name);
}

absl::StatusOr<std::shared_ptr<void>> StartingJobs::TakeImagesName(const std::string& images, uid_t owner) {
  absl::MutexLock lock(&mutex_);
  const std::pair<uid_t, std::string> key{owner, images};
  if (!images_.insert(key).second) {
    return absl::AlreadyExistsError(absl::StrCat("a job whose images are called ", images,
                                                 " is just being started: choose another --image-name"));
  }
  return std::shared_ptr<void>(nullptr, [this, key](void*) {
    absl::MutexLock dropped(&mutex_);
    images_.erase(key);
  });
}

absl::StatusOr<std::shared_ptr<void>> StartingJobs::TakeLog(const std::string& log, bool supervised) {
  struct stat info;
  // What is no file, as /dev/null, is not cut back.
  if (log.empty() || (::stat(log.c_str(), &info) == 0 && !S_ISREG(info.st_mode))) return nullptr;
  const std::string key = LogKey(log);
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = logs_.equal_range(key);
  if (std::any_of(begin, end, [&](const auto& other) { return supervised || other.second; })) {
    return absl::FailedPreconditionError(
        absl::StrCat("another job is just being started with the log ", log,
                     ", and one that is brought back has its log cut: give each another --log"));
  }
  const auto reserved = logs_.emplace(key, supervised);
  return std::shared_ptr<void>(nullptr, [this, reserved](void*) {
    absl::MutexLock dropped(&mutex_);
    logs_.erase(reserved);
  });
}

}  // namespace rekindle::daemon
