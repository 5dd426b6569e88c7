// Serves the missing memory of lazily restored jobs: their page faults at once, their recorded working set
// before they run, and the rest in the background. One process for all of them (rekindle-pager), so that what
// many copies of an image need is read and decompressed once. docs/pager.md has the whole picture.
//
// A job must never see zeros where a page is missing. The kernel would give it zeros as soon as the last
// descriptor of a userfaultfd closes, so each is held by the job's sandbox too, until no process of it lives.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/fair_threads.h"
#include "base/unique_fd.h"
#include "dedup_store/store.h"
#include "restore/cache_warmer.h"
#include "restore/frame_cache.h"
#include "restore/lazy_image.h"

namespace rekindle::restore {

// What helps where the pager has none.
inline constexpr char kNoDescriptors[] =
    "the pager has no descriptors left (it holds some for each process whose memory is missing): raise the "
    "limit (LimitNOFILE=, ulimit -n), or run fewer clones";

// Of threads whose work nobody waits for.
inline constexpr int kBackgroundNice = 19;

struct PagerOptions {
  std::string store;
  uint64_t cache_bytes = uint64_t{1} << 30;
  size_t threads = 2;         // that serve faults
  size_t client_threads = 4;  // that do what is asked of the pager, beside those
  // That fill in all memory of copies for whom that is asked. One owner's copies have all but one of them.
  size_t fill_threads = 5;
  // That serve faults whose pages have to come from the disk, when the others are to stay free.
  size_t disk_threads = 16;
  absl::Duration idle_exit = absl::Seconds(10);  // without jobs and connections
};

class LazyClone;
class PagerName;
class DeferredWork;  // pager.cc

// What waits for descriptors in the pager.
class PagerSource {
 public:
  virtual ~PagerSource() = default;
  virtual int fd() const = 0;
  // It may take longer than a fault may wait: not on the threads that serve those.
  virtual bool takes_long() const { return false; }
  enum class Next {
    kDone,   // it is done for, and destroyed
    kAgain,  // whenever it is readable
    kLater,  // not before the pager's next tick, readable though it may be
    kHeld,   // not before Pager::Resume
  };
  static Next AgainIf(bool again) { return again ? Next::kAgain : Next::kDone; }
  // On one thread at a time.
  virtual Next OnReady() = 0;

 private:
  friend class Pager;
  uint64_t id_ = 0;  // the pager's
};

class Pager {
 public:
  // `listener` (see pager_protocol.h) is taken over.
  static absl::StatusOr<std::unique_ptr<Pager>> Make(const PagerOptions& options, UniqueFd listener);
  ~Pager();

  // Until it has been idle for long enough.
  void Run();

  // For the parts of the pager (pager.cc).
  uint64_t Add(std::shared_ptr<PagerSource> source) ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(uint64_t source) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of one that was held (kHeld): `next` is what its OnReady would have said.
  void Resume(const PagerSource& source, PagerSource::Next next) ABSL_LOCKS_EXCLUDED(mutex_);
  void ClientsChanged(int by) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<LazyImage>> OpenImage(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddClone(std::shared_ptr<LazyClone> clone) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveClone(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<LazyClone>> FindClone(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeFiller() ABSL_LOCKS_EXCLUDED(mutex_);
  // Has `work` done by one of the threads that serve faults, soon.
  void Defer(std::function<void()> work);
  // A thread that serves faults is about to wait for the disk. False: all others wait for it already, and
  // what it can give to jobs at once must not wait with them: `work` is to go to LeaveToDisk.
  bool MayWaitForDisk();
  void HasWaitedForDisk() { waiting_for_disk_.fetch_sub(1); }
  // Has `work`, which waits for the disk, done by threads of its own; owners take turns.
  void LeaveToDisk(uid_t owner, std::function<void()> work) { disk_->Post(owner, std::move(work)); }
  // The same of what lasts as long as filling in all memory of a copy.
  void LeaveToFillers(uid_t owner, std::function<void()> work) { fillers_->Post(owner, std::move(work)); }
  // As Defer, from the next tick on.
  void DeferToTick(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // How many processes with missing memory one clone may have at the moment.
  uint64_t ShareOfAClone() ABSL_LOCKS_EXCLUDED(mutex_);
  // Loads its working set into the cache, while CRIU makes its processes.
  void PrefetchFor(std::shared_ptr<LazyClone> clone) ABSL_LOCKS_EXCLUDED(mutex_);
  // A copy of the image with this digest will be attached soon: the same ahead of that.
  void Expect(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  // Somebody waits for a copy: what nobody waits for begins only a while after the last such call.
  void NoteStart() ABSL_LOCKS_EXCLUDED(mutex_);
  FrameCache& cache() { return *cache_; }
  // As LazyImage::Prefill, within a share of the cache's size for all images; what was made is kept later.
  absl::StatusOr<LazyImage::PrefillMade> PrefillOf(const std::shared_ptr<LazyImage>& image)
      ABSL_LOCKS_EXCLUDED(mutex_);
  store::Store& store() { return *store_; }
  // JSON; `clones`: with numbers of each.
  std::string Stats(bool clones) ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the working set of the image with this digest. False: none was recorded.
  absl::StatusOr<bool> DropWorkingSet(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes images that the store does not have any more.
  void ForgetRemovedImages() ABSL_LOCKS_EXCLUDED(mutex_);
  // Discards frames that gc has freed. Looks at all that are in memory.
  void DiscardFreedFrames();

 private:
  static constexpr absl::Duration kTick = absl::Milliseconds(50);

  Pager() = default;
  // What waits in one of the two epolls.
  void Work(const UniqueFd& epoll);
  const UniqueFd& EpollOf(const PagerSource& source) const {
    return source.takes_long() ? client_epoll_ : epoll_;
  }
  void OnTick() ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitAgainFor(uint64_t id, const PagerSource& source);
  std::vector<std::shared_ptr<LazyClone>> Clones() ABSL_LOCKS_EXCLUDED(mutex_);
  // What is due for them waits for no fill, and may itself last: it keeps working sets.
  void TickClones() ABSL_LOCKS_EXCLUDED(mutex_);
  void FillInBackground() ABSL_LOCKS_EXCLUDED(mutex_);
  void PrefetchInBackground();
  void WarmInBackground();
  void KeepInBackground();
  uint64_t HugeBytes() ABSL_LOCKS_EXCLUDED(huge_mutex_);
  // Waits while copies are being started, and until nobody has waited for one for so long. False: the pager
  // is about to end.
  bool WaitForQuiet(absl::Duration quiet) ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t MostPrefillBytes() const;
  void SaveHotList() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: nobody here had it.
  bool ForgetWorkingSet(const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return clients_ == 0 && clones_.empty(); }
  bool HasClones() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !clones_.empty() || stop_; }
  bool HasWorkForTick() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !later_sources_.empty() || !later_work_.empty();
  }
  // Until the next tick has something to do, or at the latest until `due`, by the clock of SteadyNow; of a
  // pager without jobs and connections, until it has been so for long enough.
  void AwaitTick(absl::Time due) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasPrefetches() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !prefetches_.empty() || stop_; }
  bool HasSetsToKeep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !to_keep_.empty() || stop_; }

  PagerOptions options_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<FrameCache> cache_;
  std::unique_ptr<CacheWarmer> warmer_;
  std::unique_ptr<PagerName> name_;
  UniqueFd epoll_, client_epoll_;
  UniqueFd ending_;                              // in both: readable when stop_ is set, to all who wait
  std::unique_ptr<FairThreads> disk_, fillers_;  // made by Run
  std::atomic<size_t> waiting_for_disk_{0};      // of the threads that serve faults
  std::shared_ptr<DeferredWork> deferred_;
  std::atomic<bool> stop_{false};

  absl::Mutex huge_mutex_;
  uint64_t huge_bytes_ ABSL_GUARDED_BY(huge_mutex_) = 0;  // of the cache, in huge pages
  absl::Time huge_known_at_ ABSL_GUARDED_BY(huge_mutex_) = absl::InfinitePast();

  absl::Mutex mutex_;
  int clients_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time used_ ABSL_GUARDED_BY(mutex_) = SteadyNow();  // when a connection came or went, or a job went
  std::map<uint64_t, std::shared_ptr<PagerSource>> sources_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_source_ ABSL_GUARDED_BY(mutex_) = 1;
  // For the next tick.
  std::vector<uint64_t> later_sources_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> later_work_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<LazyClone>> clones_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<LazyImage>> images_ ABSL_GUARDED_BY(mutex_);  // by digest
  std::vector<std::string> image_order_ ABSL_GUARDED_BY(mutex_);  // least recently used first
  std::set<std::string> being_opened_ ABSL_GUARDED_BY(mutex_);    // images, by digest
  struct Prefetched {
    std::shared_ptr<LazyClone> clone;  // null: `image` is expected
    std::string image;
  };
  std::deque<Prefetched> prefetches_ ABSL_GUARDED_BY(mutex_);
  struct SetToKeep {
    std::shared_ptr<LazyImage> image;
    std::shared_ptr<const PrefillSet> set;
  };
  std::deque<SetToKeep> to_keep_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_start_ ABSL_GUARDED_BY(mutex_) = SteadyNow();
  // Of sets: read as they were kept, made from packs, kept.
  uint64_t sets_loaded_ ABSL_GUARDED_BY(mutex_) = 0, sets_made_ ABSL_GUARDED_BY(mutex_) = 0,
                        sets_kept_ ABSL_GUARDED_BY(mutex_) = 0;
  bool filler_woken_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t clones_served_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t working_sets_dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace rekindle::restore
