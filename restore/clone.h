// Clones: copies of an image in sandboxes of their own, restored lazily, as many side by side as one likes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/timeline.h"
#include "criu/installation.h"
#include "dedup_store/store.h"
#include "restore/bound_paths.h"
#include "restore/cgroup.h"
#include "restore/fill.h"
#include "restore/kept_pager.h"
#include "restore/own_temporary.h"
#include "restore/pager_client.h"
#include "restore/prepared_images.h"
#include "restore/sandbox.h"
#include "restore/sandbox_pool.h"
#include "restore/touched_files.h"

namespace rekindle::restore {

struct CloneOptions {
  std::string image;  // digest
  std::string name;   // host name, and told to the job
  Network network = Network::kHost;
  // (on the machine, in the copy). They are there before anything of the image is opened.
  std::vector<std::pair<std::string, std::string>> binds;
  OwnTemporary temporary;  // copies of an image that has its own have one in any case
  // Who gets what root has left in such folders: the copy becomes him (REKINDLE_RUN_AS).
  std::optional<Owner> files_owner;
  CgroupLimits limits;
  std::map<std::string, std::string> environment;  // told to a job that has the hook
  Fill fill = Fill::kIdle;
  // How long the working set is recorded at most. A second where nothing is given; 30 where what is waited
  // for is the job's word that it is ready, or its first answer on a socket that it listens on.
  std::optional<absl::Duration> record;
  // Descriptors for 0, 1 and 2 where those were a terminal or a pipe (all three or none); not owned. None:
  // /dev/null.
  std::vector<int> stdio;
  bool log = false;  // those for 1 and 2 are a log, which takes the place of files there too
  int cancel_fd = -1;
  bool timeline = false;  // keep one; it costs some milliseconds
  bool template_instance = false;
  uid_t caller = 0;  // all of its processes must be his; 0: they may be anybody's
};

struct CloneResult {
  std::unique_ptr<Cgroup> group;  // to be kept until the sandbox has ended
  Sandbox::Released sandbox;
  pid_t root = 0;         // as seen by us
  pid_t root_inside = 0;  // in the sandbox
  UniqueFd more_control;  // of a template's sandbox: see Sandbox::AnotherControl
  OwnPlaces own;          // of a template: as each copy of it is to have them
  UniqueFd root_pidfd;
  UniqueFd channel;  // the job's control channel; not valid: the image has none
  double total_seconds = 0;
  std::vector<std::pair<std::string, double>> phases;
  uint64_t lazy_pages = 0, prefilled_pages = 0;
  uint64_t working_set_bytes = 0;    // that each copy gets before it runs; 0: not known for good yet
  Timeline timeline;                 // without the pager's part,
  std::optional<PagerClient> pager;  // which this has
};

// The next message that a copy sends on its control channel. DeadlineExceeded, Cancelled (`cancel_fd` became
// readable; -1: none), Unavailable (the copy has ended).
absl::StatusOr<std::string> ReceiveMessage(int channel, int cancel_fd, absl::Duration timeout);

class StandbyPool;  // standby.h

using OpenStore = std::function<absl::StatusOr<std::shared_ptr<store::Store>>()>;

// Thread-safe.
class CloneStarter {
 public:
  // `cache_bytes`: of the pager's memory; nothing: what a running one has, or DefaultCacheBytes. `pool_size`:
  // sandboxes of a kind that are made ahead of time. `standby_size`: copies of an image in use that stand by.
  // `kept`: folders that stay the machine's where a copy has a /tmp of its own.
  CloneStarter(std::string runtime_directory, std::optional<uint64_t> cache_bytes, size_t pool_size,
               size_t standby_size, std::vector<std::string> kept);

  // Jobs need their pagers for longer than this lives.
  ~CloneStarter();

  // Blocking. On failure nothing is left of it.
  absl::StatusOr<CloneResult> Start(store::Store& store, const criu::Installation& criu,
                                    const CloneOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  // A copy has answered, the first one that anybody knows of perhaps: what of its files it needed until then
  // is kept with the image, and asked for before the next one that finds nothing of it in memory. `writable`
  // gives the store where there is something to keep; where it can't (a read-only file system) nothing is.
  void RecordTouchedFiles(store::Store& store, const store::ImageInfo& image, pid_t root,
                          const OpenStore& writable) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetTouchedFiles(store::Store& store, const std::string& image) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes what is kept in memory for the next clone of an image.
  void ForgetImages();
  // The same of images that `store` does not have any more, here and in its pager: to be called after some
  // were removed; `collected`: and gc has freed what they had. Copies that run keep what they need.
  void ForgetRemovedImages(store::Store& store, bool collected = false) ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps a connection open itself, so that the pager and what it has in memory stay.
  absl::StatusOr<PagerClient> ConnectToPager(const store::Store& store);
  // A sandbox of the kind that is asked for most, before anybody does.
  absl::Status MakeSandboxAhead(const criu::Installation& criu) ABSL_LOCKS_EXCLUDED(pool_mutex_);
  // NotFound: none runs.
  absl::StatusOr<PagerClient> ConnectToRunningPager(const store::Store& store) const;
  // All that run, those of copies from before an upgrade too. May be none.
  absl::StatusOr<std::vector<PagerClient>> ConnectToRunningPagers(const store::Store& store) const;

 private:
  // By a service that has just started, on a machine that has nothing of it in memory.
  absl::StatusOr<PreparedImages::Image> PrepareFirst(store::Store& store, const criu::Installation& criu,
                                                     const CloneOptions& options, const BoundPaths& binds,
                                                     std::optional<FilePrefetch>* prefetch,
                                                     Timeline* timeline);
  absl::StatusOr<SandboxPool*> Pool(const criu::Installation& criu) ABSL_LOCKS_EXCLUDED(pool_mutex_);
  // Null: none stand by here.
  StandbyPool* Standby(const store::Store& store, const criu::Installation& criu) ABSL_LOCKS_EXCLUDED(mutex_);
  using Park =
      std::function<absl::StatusOr<CloneOptions>()>;  // as StandbyPool::Park; none: it is not kept waiting
  absl::StatusOr<CloneResult> Make(const PreparedImage& image, const SandboxKind& kind,
                                   const criu::Installation& criu, const PagerPlace& pager,
                                   const CloneOptions& options, const Park& park) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> KeptWith(const criu::Installation& criu) const;

  const std::string runtime_directory_;
  const size_t pool_size_, standby_size_;
  const std::vector<std::string> kept_;
  KeptPager pager_;
  PreparedImages prepared_;

  absl::Mutex pool_mutex_;  // to bring it up takes a while
  std::unique_ptr<SandboxPool> pool_ ABSL_GUARDED_BY(pool_mutex_);

  absl::Mutex mutex_;
  std::unique_ptr<StandbyPool> standby_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> files_recorded_ ABSL_GUARDED_BY(mutex_);  // digests
};

}  // namespace rekindle::restore
