// An image as the pager serves it: which pages of which task come while it runs, and where they lie in the
// store. Immutable but for the working set and what is prefilled; shared by all copies of the image.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "dedup_store/store.h"
#include "restore/prefill_set.h"
#include "restore/task_pages.h"
#include "restore/working_set.h"

namespace rekindle::restore {

// Takes away all notes of the working set of the image with this digest. False: there were none.
absl::StatusOr<bool> RemoveWorkingSet(store::Store& store, const std::string& image);

// Thread-safe.
class LazyImage {
 public:
  // `image`: reference or digest.
  static absl::StatusOr<std::shared_ptr<LazyImage>> Open(store::Store& store, const std::string& image);

  const store::ImageReader& reader() const { return *reader_; }
  // Null: nothing of this task is served lazily.
  std::shared_ptr<const TaskPages> PagesOf(pid_t pid) const;
  // By the task's PID in the image.
  const std::map<pid_t, std::shared_ptr<const TaskPages>>& tasks() const { return tasks_; }
  uint64_t pages() const;  // of all tasks
  // What is written into the tasks before they run (WrittenAreas): by the frame that it lies in, so that each
  // is looked up once. Zero pages have a frame of their own, which is default-made.
  struct Written {
    pid_t pid = 0;
    store::StoredRun run;
  };
  const std::vector<std::pair<store::FrameId, std::vector<Written>>>& written() const { return written_; }

  // Pages of a run of a task.
  struct Piece {
    pid_t pid = 0;
    size_t run = 0;
    uint32_t first = 0, pages = 0;
  };
  using Pieces = std::vector<Piece>;
  // The working set, in the order of the first touch; never null.
  std::shared_ptr<const Pieces> working_set() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Is it known so well that nothing more need be recorded?
  bool Learned() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What every copy gets before it runs; made by the first who asks, for whom others wait: read as it was
  // kept beside the image, or else from the packs. Null: the working set is not yet known so well that it
  // stays, or this would take more than `most_bytes`.
  struct PrefillMade {
    std::shared_ptr<const PrefillSet> set;
    bool loaded = false;  // it was read by this call, as it was kept
    bool made = false;    // from the packs, by this call: it should be kept
  };
  absl::StatusOr<PrefillMade> Prefill(store::Store& store, FrameCache& cache, uint64_t most_bytes)
      ABSL_LOCKS_EXCLUDED(prefill_mutex_, mutex_);
  // Keeps the set, which Prefill has made, with the image in the store (store::kWorkingSetPagesNote). False:
  // it is too large for that, or the image or its working set has gone. `go_on`: see EncodePrefillNote.
  absl::StatusOr<bool> KeepPrefill(store::Store& store, const std::shared_ptr<const PrefillSet>& set,
                                   const std::function<bool()>& go_on)
      ABSL_LOCKS_EXCLUDED(keep_mutex_, mutex_);
  // The one that was made; null: none is kept in memory.
  std::shared_ptr<const PrefillSet> prefill() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the one that is kept; 0: none is.
  uint64_t prefill_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  void DropPrefill() ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds what a copy touched that had the working set in place, and keeps the result with the image in the
  // store.
  struct Touched {
    pid_t pid = 0;
    uint64_t number = 0;  // of a page of the task
  };
  absl::Status Learn(store::Store& store, const std::vector<Touched>& touched, RecordingEnd end)
      ABSL_LOCKS_EXCLUDED(keep_mutex_, mutex_);
  // The working set was dropped: what is recorded by copies that had it in place is kept no more.
  // False: that was said before.
  bool ForgetWorkingSet() ABSL_LOCKS_EXCLUDED(keep_mutex_, mutex_);
  struct Recorded {
    uint64_t pages = 0;       // that come while it runs
    uint32_t recordings = 0;  // 0: there is no working set
    int64_t recorded_unix_ns = 0;
    RecordingEnd end = RecordingEnd::kUnknown;  // of the last one
  };
  Recorded recorded() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static std::string ObjectOf(pid_t pid);
  Pieces PiecesOf(const WorkingSet& set) const;
  void AddRecording(const std::vector<Touched>& touched, RecordingEnd end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Sha256Digest ImageDigest() const;
  // Null: nothing was kept, or it can't be used.
  std::shared_ptr<const PrefillSet> LoadKept(store::Store& store, const Sha256Digest& working_set_digest,
                                             const std::vector<PrefillSource>& working_set,
                                             const std::vector<PrefillSource>& written) const;

  std::unique_ptr<store::ImageReader> reader_;
  std::map<pid_t, std::shared_ptr<const TaskPages>> tasks_;
  std::vector<std::pair<store::FrameId, std::vector<Written>>> written_;
  mutable absl::Mutex mutex_;
  bool forgotten_ ABSL_GUARDED_BY(mutex_) = false;
  WorkingSet working_set_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const PrefillSet> prefill_ ABSL_GUARDED_BY(mutex_);  // of pieces_
  absl::Mutex prefill_mutex_;                                          // held while it is made
  absl::Mutex keep_mutex_;                                             // held while it is put into the store
  std::shared_ptr<const Pieces> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::restore
