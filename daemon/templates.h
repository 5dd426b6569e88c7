// The templates of this node.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/job_registry.h"
#include "restore/template.h"

namespace rekindle::daemon {

struct TemplateRecord {
  std::string name, image, digest;
  uid_t owner = 0;
  JobRecord job;
  double seconds = 0;
  uint64_t copies = 0;
  std::shared_ptr<restore::Template> instance;
};

// Thread-safe.
class Templates {
 public:
  // AlreadyExists when a living one has the name, both.
  absl::Status CheckNameIsFree(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancelled: whoever asked for it has gone, as `cancelled` says, and it is taken down again: nobody else
  // would know that it is up.
  absl::Status Add(TemplateRecord record, const std::function<bool()>& cancelled) ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound: there is none.
  absl::StatusOr<TemplateRecord> Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);
  void CountCopy(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<TemplateRecord> List() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Remove(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status CheckIsFree(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, TemplateRecord> templates_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
