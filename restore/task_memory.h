// The memory of an image's tasks, as its CRIU files describe it.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/status/statusor.h"
#include "criu/image_files.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::restore {

// One task's images, parsed.
struct TaskMemory {
  pid_t pid = 0;
  v1::PagesObject object;
  criu::Pagemap pagemap;
  std::vector<criu::Vma> areas;
  bool huge_pages_disabled = false;  // by the job itself
};

// The tasks whose memory is stored by address. DataLoss: areas of one overlap.
absl::StatusOr<std::vector<TaskMemory>> ReadTaskMemories(const store::ImageReader& image,
                                                         const v1::JobManifest& manifest);

// The areas, ascending, that CRIU registers with a userfaultfd in a lazy restore.
std::vector<criu::Vma> LazyAreas(const TaskMemory& task);

// The areas, ascending, whose pages a lazy restore writes itself before the job runs. CRIU would read them in
// many small pieces.
std::vector<criu::Vma> WrittenAreas(const TaskMemory& task);

}  // namespace rekindle::restore
