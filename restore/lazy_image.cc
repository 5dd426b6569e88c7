#include "restore/lazy_image.h"

#include <vector>

#include "base/status.h"
#include "restore/restore.h"
#include "restore/task_memory.h"

namespace rekindle::restore {

absl::StatusOr<std::shared_ptr<const LazyImage>> LazyImage::Open(store::Store& store,
                                                                 const std::string& image) {
  auto opened = std::make_shared<LazyImage>();
  RK_ASSIGN_OR_RETURN(opened->reader_, store.OpenImage(image));
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, ReadJobManifest(*opened->reader_));
  RK_ASSIGN_OR_RETURN(std::vector<TaskMemory> tasks, ReadTaskMemories(*opened->reader_, manifest));
  for (const TaskMemory& task : tasks) {
    std::vector<AddressRange> areas;
    for (const criu::Vma& area : LazyAreas(task)) areas.push_back({area.start, area.end});
    RK_ASSIGN_OR_RETURN(std::vector<store::StoredRun> layout, opened->reader_->Layout(task.object.object()));
    opened->tasks_[task.pid] = std::make_shared<const TaskPages>(layout, areas);
  }
  return opened;
}

std::shared_ptr<const TaskPages> LazyImage::PagesOf(pid_t pid) const {
  auto found = tasks_.find(pid);
  return found == tasks_.end() ? nullptr : found->second;
}

uint64_t LazyImage::pages() const {
  uint64_t pages = 0;
  for (const auto& [pid, task] : tasks_) pages += task->pages();
  return pages;
}

}  // namespace rekindle::restore
