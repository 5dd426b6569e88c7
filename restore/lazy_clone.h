// One lazily restored copy of an image, as the pager sees it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/cgroup_memory.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "criu/lazy_pages.h"
#include "restore/fill.h"
#include "restore/first_answer.h"
#include "restore/frame_cache.h"
#include "restore/lazy_image.h"
#include "restore/lazy_task.h"
#include "restore/pager.h"
#include "restore/pager_record.h"

namespace rekindle::restore {

struct LazyCloneOptions {
  std::string id;
  Fill fill = Fill::kIdle;
  absl::Duration record = absl::Seconds(1);  // after it runs, unless it is known before that it is ready
  bool until_answer = false;  // it is ready when it has answered on a socket that it listens on
  bool until_ready = false;   // it says when it is (see Ready)
  bool timeline = false;      // keep one
  std::shared_ptr<const MemoryRoom> room = std::make_shared<const MemoryRoom>();
};

// Thread-safe.
class LazyClone : public std::enable_shared_from_this<LazyClone> {
 public:
  LazyClone(Pager& pager, LazyCloneOptions options, std::shared_ptr<LazyImage> image, UniqueFd listener,
            UniqueFd keeper);

  const std::string& id() const { return options_.id; }
  LazyImage& image() { return *image_; }
  bool running() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool complete() const ABSL_LOCKS_EXCLUDED(mutex_);  // it is served no more
  Fill fill() const { return options_.fill; }
  // Until what it has before it runs is in place.
  bool being_made() const { return !prefill_done_ && !ended_; }

  // Begins to listen for CRIU.
  void Start();
  // Writes what must be there before the job runs (`processes`: its tasks, by their PIDs in the image) and
  // puts in the recorded working set; with Fill::kEager, everything. How many pages came of the latter.
  absl::StatusOr<uint64_t> Prefill(const std::map<pid_t, UniqueFd>& processes) ABSL_LOCKS_EXCLUDED(mutex_);
  // It is not waited for any more: it runs now, or stands by.
  void PrefillDone() { prefill_done_ = true; }
  // Loads the working set into the cache.
  void Prefetch();
  // All that is missing. ResourceExhausted: there is no room for it.
  absl::StatusOr<uint64_t> FillAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // What others are putting in just then is not there yet when FillAll returns, nor may it be known that the
  // job runs. Returns complete(), after a while where it isn't so.
  bool AwaitComplete() const ABSL_LOCKS_EXCLUDED(mutex_);
  // A bounded part of the background fill; false when there is nothing more to do now.
  bool FillSome() ABSL_LOCKS_EXCLUDED(mutex_);
  // The job is ready, by what is given: the rest of its memory may come now.
  void Ready(RecordingEnd how) ABSL_LOCKS_EXCLUDED(mutex_);
  // For things that are due at some time.
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Numbers {
    uint64_t pages = 0, missing = 0, faults = 0, zero_faults = 0, prefilled = 0, filled = 0, processes = 0;
    bool running = false;
  };
  Numbers numbers() const ABSL_LOCKS_EXCLUDED(mutex_);
  PagerRecord& record() { return record_; }
  bool HasRun() const ABSL_LOCKS_EXCLUDED(mutex_);  // as far as is known: whether it does, or has ended
  std::string EncodeTimeline() const ABSL_LOCKS_EXCLUDED(mutex_);  // see PagerRecord

  // The parts of OnReady (lazy_clone.cc).
  PagerSource::Next OnListener();
  PagerSource::Next OnConnection();
  bool OnKeeper();
  PagerSource::Next OnTask(const std::shared_ptr<LazyTask>& task);
  bool OnSockets(FirstAnswer& answer);

 private:
  void Watch(std::shared_ptr<PagerSource> source) ABSL_LOCKS_EXCLUDED(mutex_);
  enum class Made { kByCriu, kByFork };
  void AddTask(std::shared_ptr<LazyTask> task, Made made) ABSL_LOCKS_EXCLUDED(mutex_);
  // After a task was added: what it takes of the pager's descriptors is to stay within `share`.
  void KeepToShare(Made made, uint64_t share) ABSL_LOCKS_EXCLUDED(mutex_);
  // Not when so much of its share is taken that the fill has to get ahead of it first, or its init has to be
  // told of what it has forked.
  bool MayForkAtOnce() ABSL_LOCKS_EXCLUDED(mutex_);
  // To be called when there was no descriptor for what CRIU has: false when it has gone on for too long.
  bool CriuMayWait();
  // To the sandbox's init, which may not read for a while: it is stopped, or waits for a process that does
  // not die. That must not hold up other clones. False: not now; the next tick is another occasion.
  bool Tell(absl::string_view what, absl::Span<const int> descriptors = {});
  // Of that what can't be left out.
  void TellAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers one fault. False: the task has gone. Threads that serve faults leave it to others when it has to
  // wait for the disk as most of them do.
  enum class On { kFaultThread, kDiskThread };
  bool Answer(LazyTask& task, uint64_t address, std::vector<uint64_t>* more, On thread = On::kFaultThread);
  // Nothing: it was left to others.
  std::optional<absl::StatusOr<FrameCache::Pin>> GetOrLoad(LazyTask& task, uint64_t address,
                                                           store::FrameId frame, On thread,
                                                           PagerRecord::Fault* fault);
  // Of a page that the image's set has, without its frame: CRIU touches some before the set is put in. False:
  // it has not.
  bool PutKept(LazyTask& task, const LazyTask::Wanted& wanted, bool alone, uint32_t* pages,
               absl::StatusOr<LazyTask::Outcome>* outcome);
  // Of a page that is touched, so many. They are charged to the job as what it touches is.
  bool MayBringNeighbours(uint32_t pages) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the clone has failed.
  bool TakeEvents(LazyTask& task, std::vector<uint64_t>* faults, bool* forked = nullptr);
  // On one of the pager's threads; at its next tick if there is no descriptor for what the task has forked.
  void AnswerLater(LazyTask& task, std::vector<uint64_t> faults);
  // Ends the job: its memory can't be had.
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);
  void CompleteIfDone() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndRecording(RecordingEnd how) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndIfAllGone() ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that have ended or run another program. Of a crowded clone also those that lack nothing: they are
  // processes like any other, and so is what they fork.
  void LetGoOfTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::shared_ptr<LazyTask>> Tasks() const ABSL_LOCKS_EXCLUDED(mutex_);

  // What is put in: pages of a run of a task.
  struct Piece {
    LazyTask* task = nullptr;
    size_t run = 0;
    uint32_t first = 0, pages = 0;
  };
  // /proc/PID/mem of the tasks that something is written into.
  absl::StatusOr<std::map<pid_t, UniqueFd>> OpenMemories(const std::map<pid_t, UniqueFd>& processes) const;
  absl::Status Write(const std::map<pid_t, UniqueFd>& memories);
  absl::Status PutWorkingSet();
  // Of who stands still and listens, if that is what ends the recording.
  void WatchSockets(const std::map<pid_t, UniqueFd>& processes) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same two of a set. What is not written must not run; of a working set a part will do.
  absl::Status WriteSet(const PrefillSet& set, const std::map<pid_t, UniqueFd>& memories);
  absl::Status PutSet(const PrefillSet& set);
  std::map<pid_t, std::shared_ptr<LazyTask>> TasksByPid() const;
  // Calls use(i, frame) for each of the frames, from several threads.
  absl::Status WithFrames(
      absl::Span<const store::FrameId> frames, size_t threads,
      const std::function<absl::Status(size_t i, absl::Span<const std::byte> frame)>& use);
  absl::Status PutPieces(const std::vector<Piece>& pieces, size_t threads, std::atomic<uint64_t>* put);
  // Is there room for all that is missing? A part of what nobody waits for would only take the room that the
  // job needs for what it touches.
  struct Room {
    uint64_t missing = 0, left = 0;  // bytes
    bool for_all() const { return missing <= left; }
  };
  Room LookForRoom() const ABSL_LOCKS_EXCLUDED(mutex_);
  // ResourceExhausted: there is not.
  absl::Status CheckRoomForAll() const ABSL_LOCKS_EXCLUDED(mutex_);
  // How many of so many more pages there is room for before the job runs.
  uint64_t TakeRoom(uint64_t pages);
  // Aborted: the task goes on changing its memory, and `change` is kLeave.
  enum class Change { kWaitFor, kLeave };
  absl::Status PutPages(LazyTask& task, uint64_t number, uint64_t pages, const std::byte* bytes,
                        Change change = Change::kWaitFor);
  // As PutPieces with all of what the pieces' frames have, by the background fill's threads.
  absl::Status PutInBackground(const std::vector<Piece>& pieces);

  Pager& pager_;
  const LazyCloneOptions options_;
  const std::shared_ptr<LazyImage> image_;
  const UniqueFd listener_;
  const UniqueFd keeper_;
  std::optional<criu::LazyPagesConnection> connection_;  // made by OnListener, used by OnConnection

  std::atomic<uint64_t> faults_{0}, zero_faults_{0}, prefilled_{0}, filled_{0};
  std::atomic<uint64_t> prefill_room_{
      MemoryRoom::kUnlimited};  // bytes, what is counted down while it stands still
  // Neighbours that may come until the room is looked at again, not before that time.
  std::atomic<int64_t> neighbours_{0}, look_for_room_ns_{0};
  PagerRecord record_;
  PagerRecord::Loaded loaded_in_bulk_;
  std::atomic<uint64_t> loaded_by_faults_{0};  // bytes
  std::atomic<bool> recording_;
  std::atomic<bool> prefill_done_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> crowded_{false};     // it has many processes for its share of the pager's descriptors
  std::optional<Stopwatch> criu_waits_;  // for a descriptor; by OnListener, then OnConnection
  std::atomic<bool> ended_{false};
  std::atomic<bool> sandbox_ended_{false};
  std::atomic<bool> exited_{false};     // the job, by itself
  std::atomic<int> events_in_work_{0};  // children that were read of may not be in tasks_ yet

  mutable absl::Mutex mutex_;
  // Being served. The sandbox's init has the descriptor too, under the same number.
  struct Served {
    std::shared_ptr<LazyTask> task;
    uint64_t number = 0;
    uint64_t source = 0;
    bool told = false;  // the init has it
  };
  std::vector<Served> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<UniqueFd> lost_children_ ABSL_GUARDED_BY(mutex_);  // as long as any process may run
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t count_tasks_at_ ABSL_GUARDED_BY(mutex_) = 0;    // how many to look again for those that have ended
  std::vector<uint64_t> sources_ ABSL_GUARDED_BY(mutex_);  // without those of tasks
  absl::Time look_at_tasks_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time untold_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // there are such tasks
  std::string untold_end_ ABSL_GUARDED_BY(mutex_);  // the packet that says why; empty: it was sent
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  bool fill_paused_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time record_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time fill_from_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::vector<LazyImage::Touched> touched_ ABSL_GUARDED_BY(mutex_);  // in order
  std::unique_ptr<FirstAnswer> answer_ ABSL_GUARDED_BY(mutex_);      // until it runs
  size_t fill_task_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t fill_next_ ABSL_GUARDED_BY(mutex_) = 0;  // run
  std::atomic<bool> fill_again_{false};             // something was left out, and will be taken by then
};

}  // namespace rekindle::restore
