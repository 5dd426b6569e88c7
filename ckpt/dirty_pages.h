// Which memory of jobs has not been written since their last images, so that the next capture need not copy
// it.
//
// At the end of a freeze, when the memory is copied, Arm takes the kernel's marks off (page_marks.h) and
// notes in which frame each page lies. In the next freeze a page is clean when all of this holds:
//   - the image of that freeze was committed, and is the one that the new image builds on;
//   - it is the same process, and the page was in memory then and is now;
//   - it has no mark;
//   - it lies in the same frame. mremap() of 2 MiB and more moves whole page tables and puts no mark on what
//     it brings (mm/mremap.c, move_normal_pmd(), still so after Linux 6.16), and where such memory comes to
//     lie at an address that the last image has, marks alone would give that image's content for it. Pages
//     that KSM merges get other frames, too.
// Whatever is not known is not clean, and so is copied.
//
// What nobody can see is that another program takes the marks off meanwhile (criu pre-dump --track-mem,
// another daemon): what was written before that then looks clean, and the image would be wrong. So this is
// used only where it is asked for. Memory that a device writes by itself is not marked either: jobs that use
// a GPU are left out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ckpt/address_range.h"
#include "ckpt/page_marks.h"

namespace rekindle::ckpt {

// Thread-safe. Keeps 8 bytes for each page that it tracks. Processes are named by our own PIDs of them.
class DirtyPages {
 public:
  explicit DirtyPages(std::unique_ptr<PageMarks> marks) : marks_(std::move(marks)) {}
  // With the kernel's marks. FailedPrecondition: it has none that can be used.
  static absl::StatusOr<std::unique_ptr<DirtyPages>> Open();

  // Begins to track `memory`, disjoint, all of which has been copied; its processes must stand still from
  // before the copy until this returns. The job waits for it: some milliseconds for each GiB. A process whose
  // marks can't be taken off is not tracked. Returns a number for Committed, never 0.
  uint64_t Arm(const TaskRanges& memory) ABSL_LOCKS_EXCLUDED(mutex_);
  // What was copied before that Arm is in the image with this digest, whole.
  void Committed(uint64_t generation, const std::string& image_digest) ABSL_LOCKS_EXCLUDED(mutex_);
  // The parts of `range` that are as the image with this digest has them, ascending. Very short ones are left
  // out: to copy them costs less. The process must stand still.
  std::vector<AddressRange> CleanRanges(pid_t pid, const std::string& image_digest, AddressRange range)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Frames {
    uint64_t first_page = 0;
    std::vector<uint64_t> frames;  // 0: not known
  };
  struct Process {
    uint64_t start_ticks = 0, generation = 0;
    std::string image_digest;                           // empty: it is not committed
    std::shared_ptr<const std::vector<Frames>> memory;  // ascending
  };

  absl::StatusOr<Process> ArmProcess(pid_t pid, const std::vector<AddressRange>& memory);
  void AddClean(pid_t pid, const Frames& frames, AddressRange range, std::vector<AddressRange>* clean);

  const std::unique_ptr<PageMarks> marks_;
  absl::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<pid_t, Process> processes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::ckpt
