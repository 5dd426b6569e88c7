// An image as the pager serves it: which pages of which task come while it runs, and where they lie in the
// store. Immutable; shared by all copies of the image.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "dedup_store/store.h"
#include "restore/task_pages.h"

namespace rekindle::restore {

class LazyImage {
 public:
  // `image`: reference or digest.
  static absl::StatusOr<std::shared_ptr<const LazyImage>> Open(store::Store& store, const std::string& image);

  const store::ImageReader& reader() const { return *reader_; }
  // Null: nothing of this task is served lazily.
  std::shared_ptr<const TaskPages> PagesOf(pid_t pid) const;
  // By the task's PID in the image.
  const std::map<pid_t, std::shared_ptr<const TaskPages>>& tasks() const { return tasks_; }
  uint64_t pages() const;  // of all tasks

 private:
  std::unique_ptr<store::ImageReader> reader_;
  std::map<pid_t, std::shared_ptr<const TaskPages>> tasks_;
};

}  // namespace rekindle::restore
