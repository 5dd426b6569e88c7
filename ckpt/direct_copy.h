// Copies memory straight out of a frozen job while CRIU dumps the rest: see ckpt/page_filter.c. It begins
// with what CRIU will leave to us, and in the end keeps what CRIU has left to us.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "ckpt/address_range.h"
#include "ckpt/page_filter.h"
#include "ckpt/range_set.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "criu/job_namespaces.h"

namespace rekindle::ckpt {

// The parts of a frozen task's memory that need no copying, ascending: the new image takes them from its
// parent. `task` is its PID as CRIU sees it, `pid` ours.
using UnchangedMemory =
    std::function<std::vector<AddressRange>(pid_t task, pid_t pid, const AddressRange& range)>;

// Thread-safe.
class DirectCopy {
 public:
  // Listens in `work_directory`, CRIU's, and copies into `arena` from `threads` threads. CRIU runs in
  // `namespaces`; both must outlive this. `unchanged`, when given, is asked by one thread.
  static absl::StatusOr<std::unique_ptr<DirectCopy>> Listen(const std::string& work_directory,
                                                            const criu::JobNamespaces& namespaces,
                                                            StagingArena* arena, size_t threads,
                                                            UnchangedMemory unchanged = {});
  ~DirectCopy();
  DirectCopy(const DirectCopy&) = delete;
  DirectCopy& operator=(const DirectCopy&) = delete;

  // Blocks until all that CRIU has left to us is copied. To be called when CRIU has dumped every task and
  // before any of them runs. An error when memory could not be read: the dump is worthless then.
  absl::Status Finish();
  // Ends Finish, with this error.
  void Abandon(absl::Status why);

  uint64_t bytes_copied() const { return bytes_copied_.load(std::memory_order_relaxed); }
  // Of what CRIU has left to us, what was begun before. Call after Finish.
  uint64_t bytes_ahead() const;
  // All memory that CRIU has left to us, copied or unchanged, by our own PIDs. Call after Finish.
  TaskRanges Memory() const;
  // What went wrong so far.
  absl::Status status() const;
  // Could memory not be read (rather than: no room, abandoned)? Then the same dump may do well without the
  // filter.
  bool unreadable() const;

  // By task (its PID as CRIU sees it), ascending, what is unchanged included. Call after Finish.
  std::map<pid_t, std::vector<CopiedRange>> Take();

 private:
  struct Slice {
    pid_t task, pid;  // as CRIU sees it, ours
    uint64_t address;
    absl::Span<std::byte> to;

    AddressRange range() const { return {address, address + to.size()}; }
  };
  struct Unread {
    pid_t task;
    AddressRange range;
    absl::Status why;
  };
  struct Task {
    pid_t pid = 0;     // ours
    UniqueFd pagemap;  // once it is needed
    RangeSet begun;    // copied, to be copied, or unchanged
    RangeSet left;     // what CRIU has left to us: all of it is in `begun`
    std::vector<CopiedRange> copied;
  };

  DirectCopy(const criu::JobNamespaces& namespaces, StagingArena* arena, UnchangedMemory unchanged)
      : namespaces_(namespaces), arena_(arena), unchanged_(std::move(unchanged)) {}
  void Receive();
  void HangUp(absl::Status why);
  bool ReadRanges(int connection);  // false at its end
  absl::Status Accept(const PageFilterRange& range) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins with what has content in an area.
  absl::Status CopyAhead(const PageFilterRange& area) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many bytes of it are new.
  absl::StatusOr<uint64_t> Begin(pid_t task, const AddressRange& range) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Task*> Meet(pid_t task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Schedule(pid_t task, pid_t pid, uint64_t begin, uint64_t end) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropWhatWasNotLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  void Fail(absl::Status status);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !slices_.empty(); }
  bool Finished() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !failure_.ok() || (all_received_ && slices_.empty() && copying_ == 0);
  }

  const criu::JobNamespaces& namespaces_;
  StagingArena* const arena_;
  const UnchangedMemory unchanged_;
  UniqueFd listener_, wake_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> bytes_copied_{0};
  absl::Span<std::byte> block_;  // of the thread that receives

  mutable absl::Mutex mutex_;
  std::deque<Slice> slices_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Unread> unread_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ahead_ ABSL_GUARDED_BY(mutex_) = 0;
  int copying_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool all_received_ ABSL_GUARDED_BY(mutex_) = false;
  bool unreadable_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rekindle::ckpt
