#include "restore/task_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/pages_file.h"

namespace rekindle::restore {

absl::StatusOr<std::vector<TaskMemory>> ReadTaskMemories(const store::ImageReader& image,
                                                         const v1::JobManifest& manifest) {
  std::vector<TaskMemory> tasks;
  for (const v1::PagesObject& object : manifest.pages()) {
    if (!absl::StartsWith(object.object(), v1::kTaskMemoryPrefix)) continue;
    TaskMemory task;
    task.object = object;
    absl::string_view id = absl::string_view(object.object()).substr(sizeof v1::kTaskMemoryPrefix - 1);
    if (!absl::SimpleAtoi(id, &task.pid)) continue;
    RK_ASSIGN_OR_RETURN(task.pagemap, ReadPagemap(image, object));
    RK_ASSIGN_OR_RETURN(std::string mm,
                        image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, "mm-", task.pid, ".img")));
    RK_ASSIGN_OR_RETURN(task.areas, criu::ParseMm(mm));
    RK_ASSIGN_OR_RETURN(task.huge_pages_disabled, criu::HugePagesDisabled(mm));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

namespace {

std::vector<criu::Vma> Areas(const TaskMemory& task, const std::function<bool(const criu::Vma&)>& wanted) {
  std::vector<criu::Vma> areas;
  std::copy_if(task.areas.begin(), task.areas.end(), std::back_inserter(areas), wanted);
  std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return areas;
}

}  // namespace

std::vector<criu::Vma> LazyAreas(const TaskMemory& task) {
  return Areas(task, [](const criu::Vma& area) {
    // A forked child has zeros there, and no event tells that: they would be taken for missing pages.
    return area.plain_anonymous() && (area.madv & 1ull << MADV_WIPEONFORK) == 0;
  });
}

std::vector<criu::Vma> WrittenAreas(const TaskMemory& task) {
  return Areas(task, [](const criu::Vma& area) { return area.private_file(); });
}

}  // namespace rekindle::restore
