#include "restore/task_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "rekindle/v1/image_layout.h"
#include "restore/criu_files.h"
#include "restore/pages_file.h"

namespace rekindle::restore {

namespace {

std::vector<criu::Vma> Areas(const TaskMemory& task, const std::function<bool(const criu::Vma&)>& wanted) {
  std::vector<criu::Vma> areas;
  std::copy_if(task.areas.begin(), task.areas.end(), std::back_inserter(areas), wanted);
  std::sort(areas.begin(), areas.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return areas;
}

bool IsLazy(const criu::Vma& area) {
  // A forked child has zeros there, and no event tells that: they would be taken for missing pages.
  return area.plain_anonymous() && (area.madv & 1ull << MADV_WIPEONFORK) == 0;
}

bool IsWritten(const criu::Vma& area) { return area.private_file(); }

// Who serves pages by areas would give what belongs to none, or to two.
absl::Status CheckApart(const TaskMemory& task) {
  uint64_t end = 0;
  for (const criu::Vma& area :
       Areas(task, [](const criu::Vma& one) { return IsLazy(one) || IsWritten(one); })) {
    if (area.start < end) {
      return absl::DataLossError(absl::StrFormat(
          "reading the image: memory areas of its process %d overlap at %#x; it is damaged, or was made by "
          "hand: take it again",
          task.pid, area.start));
    }
    end = area.end;
  }
  return absl::OkStatus();
}

}  // namespace

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
    RK_ASSIGN_OR_RETURN(std::string mm, ReadCriuFile(image, absl::StrCat("mm-", task.pid, ".img")));
    RK_ASSIGN_OR_RETURN(task.areas, criu::ParseMm(mm));
    RK_ASSIGN_OR_RETURN(task.huge_pages_disabled, criu::HugePagesDisabled(mm));
    RK_RETURN_IF_ERROR(CheckApart(task));
    tasks.push_back(std::move(task));
  }
  return tasks;
}

std::vector<criu::Vma> LazyAreas(const TaskMemory& task) { return Areas(task, IsLazy); }

std::vector<criu::Vma> WrittenAreas(const TaskMemory& task) { return Areas(task, IsWritten); }

}  // namespace rekindle::restore
