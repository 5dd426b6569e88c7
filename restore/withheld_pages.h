// The fast way for large memory: CRIU gets images without the pages of large private anonymous areas; once
// the tasks exist and before any of them runs, the pages are copied straight from the store into their
// memory, from several threads and into huge pages where that pays. It saves CRIU's single-threaded copy
// through an images folder and most of the cost of first touch.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "criu/image_files.h"
#include "dedup_store/image_in_memory.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "restore/memory_filler.h"
#include "restore/task_memory.h"

namespace rekindle::restore {

// What of one task's memory is withheld from CRIU.
struct WithheldTask {
  pid_t pid = 0;
  std::string object;                      // in the store
  std::vector<store::PageRun> ranges;      // to fill
  criu::Pagemap kept;                      // what CRIU still gets
  std::vector<AddressRange> huge_allowed;  // areas that may get huge pages
  uint64_t bytes = 0;                      // sum of the ranges
};

// Chooses. An area is withheld when it is plain anonymous and writable, holds enough pages to be worth it,
// and no other task has memory at its addresses (such memory may be shared copy-on-write, which CRIU restores
// by forking).
std::vector<WithheldTask> ChooseWithheld(const std::vector<TaskMemory>& tasks);

// The same for a lazy restore: CRIU hands over, to be filled while the job runs, all memory that is plain and
// anonymous, and gets none of its pages. Every task is in the result, with `ranges` empty where it has no
// such memory.
std::vector<WithheldTask> ChooseLazy(const std::vector<TaskMemory>& tasks);

// Copies the pages into the stopped tasks. `*bytes_done` counts. `in_memory` may be null, or of another
// image.
absl::Status FillWithheld(const store::ImageReader& image, const store::ImageInMemory* in_memory,
                          const std::vector<WithheldTask>& tasks, std::atomic<uint64_t>* bytes_done);

}  // namespace rekindle::restore
