// One task's memory, filled while the task runs, through its userfaultfd (userfaultfd(2); CRIU has registered
// the areas). Pages go in once, each from bytes that were verified; what the task does to its memory
// meanwhile (unmap, discard, move, fork) is followed event by event.
//
// Thread-safe. The kernel lets a task go on as soon as its event is read, so events are read while nobody
// puts in pages: a page put in after its memory was discarded would bring old content back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "restore/missing_pages.h"
#include "restore/task_pages.h"

namespace rekindle::restore {

class LazyTask : public std::enable_shared_from_this<LazyTask> {
 public:
  // `pid` in the image; of a forked child that of its ancestor there.
  LazyTask(pid_t pid, UniqueFd userfaultfd, std::shared_ptr<const TaskPages> pages);
  ~LazyTask() { --count_; }

  pid_t pid() const { return pid_; }
  int fd() const { return userfaultfd_.get(); }  // readable: call ReadEvents
  const TaskPages& pages() const { return *pages_; }
  uint64_t missing() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool AnyMissing(size_t run) const ABSL_LOCKS_EXCLUDED(mutex_);  // of its pages

  struct Events {
    std::vector<uint64_t>
        faults;  // page addresses that the task waits for; each needs an answer by Put or PutZero
    std::vector<std::unique_ptr<LazyTask>> children;  // forked; serve them too
    // Forked, and what is missing in them can't be known: they must not run on. Closed, these would give them
    // zeros, so they are to be held until they have ended.
    std::vector<UniqueFd> lost_children;
  };
  // Takes what there is, up to a fork; does not wait. A fork that there is no descriptor for (EMFILE) stays,
  // and who forks waits: see starved(). The kernel tells of it after what has been waiting by then, so if the
  // task has changed its memory in between, nobody knows which of its forks came before that: lost_children.
  absl::StatusOr<Events> ReadEvents() ABSL_LOCKS_EXCLUDED(mutex_);
  // It has forked, and there has been no descriptor for its child for so long; zero: it has not. Until
  // there is one it takes no pages: it is kChanging. Who wants to know reads its events now and then.
  absl::Duration starved() const;

  // Of a child that has just been forked, before it is served: lets go of pages where it has no memory
  // (MADV_DONTFORK). Memory may grow into there, told by no event, and has zeros then. So the sooner the
  // better; but first somebody else must have its descriptor too.
  void DropUnforked() ABSL_LOCKS_EXCLUDED(mutex_);

  enum class Outcome {
    kDone,
    kChanging,  // the task changes its memory: read its events, then try again
    kGone,      // the task has ended, or runs another program
    kNoMemory,  // of the machine, or within the limit of the task's cgroup
  };
  // Puts in those of the `pages` pages from `number` on (see TaskPages) that are still missing, and wakes who
  // waits for them. `bytes` has all of them. FailedPrecondition: the kernel does not take pages there, so
  // that the task must not go on.
  absl::StatusOr<Outcome> Put(uint64_t number, uint64_t pages, const std::byte* bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What belongs at an address that the task waits for.
  struct Wanted {
    bool missing = false;  // false: PutZero answers
    size_t run = 0;
    uint32_t page = 0;  // of the run
  };
  Wanted WhatBelongsAt(uint64_t address) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A page of zeros, or only a wake-up where a page is by now. Not if one is missing there.
  absl::StatusOr<Outcome> PutZero(uint64_t address) ABSL_LOCKS_EXCLUDED(mutex_);

  // Has the task ended, or does it run another program? Then nothing more comes of it.
  bool Gone() const { return NobodyHasMemoryBehind(userfaultfd_.get()); }
  static bool NobodyHasMemoryBehind(int userfaultfd);
  // How many there are in this process, of which each has a descriptor.
  static uint64_t count() { return count_; }
  // After kChanging, and without new events: until the task may be further.
  void WaitForChange(int attempt) const;

 private:
  LazyTask(const LazyTask& parent, UniqueFd userfaultfd) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  enum class Memory { kThere, kNotThere, kUnknown };
  // Is all of it memory that belongs to the userfaultfd, in one piece? Changes nothing.
  Memory Probe(uint64_t begin, uint64_t end) const;
  // Missing pages that follow each other in number and in memory.
  struct Range {
    uint64_t address = 0, number = 0, pages = 0;
  };
  absl::StatusOr<Outcome> CopyRange(Range range, const std::byte* bytes) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Is the task changing its memory, and waits for its events to be read?
  bool ChangeWaits() const;
  static bool MayOpenAnother();
  void NoteStarved();
  // It is about to change what is missing there.
  void NoteChange(uint64_t begin, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  static inline std::atomic<uint64_t> count_{0};
  const pid_t pid_;
  const UniqueFd userfaultfd_;
  const std::shared_ptr<const TaskPages> pages_;
  const bool forked_ = false;
  std::atomic<int64_t> starved_since_ns_{0}, starved_at_ns_{0};
  mutable absl::Mutex mutex_;  // shared to put pages in, exclusive to read events
  MissingPages missing_ ABSL_GUARDED_BY(mutex_);
  // A fork has found no descriptor, and it, or others, may still wait behind something else; meanwhile
  // `missing_` has changed.
  bool fork_waits_ ABSL_GUARDED_BY(mutex_) = false, changed_since_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rekindle::restore
