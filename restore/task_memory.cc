#include "restore/task_memory.h"

#include <sys/mman.h>

#include <algorithm>

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

std::vector<criu::Vma> LazyAreas(const TaskMemory& task) {
  std::vector<criu::Vma> areas;
  for (const criu::Vma& area : task.areas) {
    // A forked child has zeros there, and no event tells that: they would be taken for missing pages.
    if (area.madv & 1ull << MADV_WIPEONFORK) continue;
    if (area.plain_anonymous()) areas.push_back(area);
  }
  std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return areas;
}

}  // namespace rekindle::restore
