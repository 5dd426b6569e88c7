#include "restore/clone.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "restore/bound_paths.h"
#include "restore/clone_run.h"
#include "restore/compatibility.h"
#include "restore/job_logs.h"
#include "restore/opened_files_check.h"
#include "restore/standby.h"

namespace rekindle::restore {

absl::StatusOr<std::string> ReceiveMessage(int channel, int cancel_fd, absl::Duration timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    pollfd entries[2] = {{channel, POLLIN, 0}, {cancel_fd, POLLIN, 0}};
    const int n = ::poll(entries, 2, deadline.left_ms());
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) return absl::DeadlineExceededError("the job does not answer on its control channel");
    if (entries[0].revents == 0) return absl::CancelledError("nobody waits for the job's answer any more");
    RK_ASSIGN_OR_RETURN(std::optional<Packet> packet, ReceivePacket(channel));
    if (!packet.has_value())
      return absl::UnavailableError("the job has ended, or closed its control channel");
    return std::move(packet->bytes);
  }
}

namespace {

// What these ask for is settled when the copy begins to be made, or they want to see it made.
bool MayStandBy(const CloneOptions& options) {
  return options.stdio.empty() && options.binds.empty() && !options.template_instance && !options.timeline &&
         options.fill != Fill::kEager && !options.record;
}

// Those that it begins with count, and nothing but a fork is ever refused for their limit.
absl::Status CheckProcesses(const PreparedImage& image, const CgroupLimits& limits) {
  size_t count = 0;
  for (const criu::PstreeEntry& task : image.directory->tree())
    count += std::max<size_t>(task.threads.size(), 1);
  if (limits.processes == 0 || count <= limits.processes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("restoring a copy of ", image.info.reference, ": it has ", count,
                   " processes and threads from the start, more than its limit of ", limits.processes,
                   ": allow it ", count, " or more with --processes"));
}

}  // namespace

absl::StatusOr<CloneResult> CloneStarter::Start(store::Store& store, const criu::Installation& criu,
                                                const CloneOptions& options) {
  Stopwatch watch;
  const int64_t begin = MonotonicNanos();
  const BoundPaths binds(options.binds);
  PreparedImages::Image image = prepared_.Kept(options.image, binds);
  const bool prepared_before = image != nullptr;
  std::optional<FilePrefetch> prefetch;  // goes on while CRIU works
  Timeline preparations;
  if (!prepared_before) {
    auto prepared = prepared_.PrepareAgain(options.image, binds, &preparations);
    if (absl::IsNotFound(prepared.status()))
      prepared = PrepareFirst(store, criu, options, binds, &prefetch, &preparations);
    RK_ASSIGN_OR_RETURN(image, std::move(prepared));
  }
  // Before one that stands by could be taken, which anybody's is that began it.
  if (options.caller != 0) {
    RK_RETURN_IF_ERROR(Annotate(CheckAllAreHis(image->users, options.caller),
                                absl::StrCat("cloning ", image->info.reference)));
  }
  if (!options.log) RK_RETURN_IF_ERROR(image->outputs);
  RK_RETURN_IF_ERROR(CheckProcesses(*image, options.limits));
  Span preparing = SpanSince(begin, "rekindle", "restore", "prepare", {{"kept", prepared_before ? 1 : 0}});
  const double prepare = watch.seconds();
  StandbyPool* standby = image->may_stand_by && MayStandBy(options) ? Standby(store, criu) : nullptr;
  std::optional<absl::StatusOr<CloneResult>> made;
  if (standby != nullptr) made = standby->Claim(options);
  if (!made)
    made = Make(*image, {options.network, options.limits.any()}, criu, pager_.PlaceFor(store.path()), options,
                nullptr);
  if (!made->ok()) return *std::move(made);
  CloneResult result = *std::move(*made);
  if (standby != nullptr && result.working_set_bytes > 0) {
    const uint64_t files = image->temporary == nullptr ? 0 : image->temporary->bytes_in_copy();
    standby->Want(options, result.working_set_bytes + files);
  }
  result.phases.insert(result.phases.begin(), {"prepare", prepare});
  result.total_seconds = watch.seconds();
  if (options.timeline) {
    result.timeline.push_back(std::move(preparing));
    std::move(preparations.begin(), preparations.end(), std::back_inserter(result.timeline));
  }
  return result;
}

absl::StatusOr<CloneResult> CloneStarter::Make(const PreparedImage& image, const SandboxKind& kind,
                                               const criu::Installation& criu, const PagerPlace& place,
                                               const CloneOptions& options, const Park& park) {
  // Copies have the machine's files: what one has locked another can't lock as well.
  RK_RETURN_IF_ERROR(Annotate(CheckLocksAreFree(image.locks, options.cancel_fd),
                              absl::StrCat("restoring a copy of ", image.info.reference)));
  const int64_t pooling = MonotonicNanos();
  RK_ASSIGN_OR_RETURN(SandboxPool * pool, Pool(criu));
  Span pooled = SpanSince(pooling, "rekindle", "restore", "sandbox pool");
  const int64_t connecting = MonotonicNanos();
  RK_ASSIGN_OR_RETURN(PagerClient pager, pager_.Connect(place));
  Span connected = SpanSince(connecting, "rekindle", "restore", "reaching the pager");
  CloneRun run(image, kind, options, runtime_directory_, KeptWith(criu), std::move(pager));
  RK_RETURN_IF_ERROR(run.TakeSandbox(*pool));
  absl::Status status = park ? absl::OkStatus() : run.LimitMemory();
  if (status.ok()) status = run.AttachPager();
  if (status.ok()) status = run.MakeOwnPlaces();
  if (status.ok()) status = run.Bind();
  if (status.ok()) status = run.MakeSocketFolders();
  if (status.ok()) status = run.RunCriu(park);
  if (!status.ok()) {
    status = run.Explain(status);
    if (absl::IsCancelled(status)) return status;
    // Its folder goes with the sandbox.
    const std::string kept = KeepRestoreLog(runtime_directory_, run.directory(), run.directory());
    return WithMessage(status, absl::StrReplaceAll(status.message(), {{run.directory(), kept}}));
  }
  RK_ASSIGN_OR_RETURN(CloneResult result, run.Finish());
  if (options.timeline) {
    result.timeline.push_back(std::move(pooled));
    result.timeline.push_back(std::move(connected));
  }
  return result;
}

StandbyPool* CloneStarter::Standby(const store::Store& store, const criu::Installation& criu) {
  absl::MutexLock lock(&mutex_);
  if (standby_ == nullptr && standby_size_ > 0) {
    auto make = [this, criu, place = pager_.PlaceFor(store.path())](
                    const StandbyKind& kind, int cancel_fd,
                    const StandbyPool::Park& park) -> absl::StatusOr<CloneResult> {
      const PreparedImages::Image image = prepared_.Kept(kind.image, BoundPaths());
      if (image == nullptr) return absl::CancelledError("its image is not in use any more");
      CloneOptions options;
      options.image = kind.image;
      options.network = kind.network;
      options.fill = kind.fill;
      options.cancel_fd = cancel_fd;
      return Make(*image, {kind.network, kind.grouped}, criu, place, options, park);
    };
    standby_ = std::make_unique<StandbyPool>(std::move(make), standby_size_);
  }
  return standby_.get();
}

CloneStarter::CloneStarter(std::string runtime_directory, std::optional<uint64_t> cache_bytes,
                           size_t pool_size, size_t standby_size, std::vector<std::string> kept)
    : runtime_directory_(std::move(runtime_directory)),
      pool_size_(pool_size),
      standby_size_(standby_size),
      kept_(std::move(kept)),
      pager_(runtime_directory_, cache_bytes),
      prepared_(runtime_directory_) {}

CloneStarter::~CloneStarter() {
  std::unique_ptr<StandbyPool> standby;
  {
    absl::MutexLock lock(&mutex_);
    standby = std::move(standby_);
  }
}

void CloneStarter::ForgetImages() { prepared_.ForgetAll(); }

void CloneStarter::ForgetRemovedImages(store::Store& store, bool collected) {
  StandbyPool* standby;
  {
    absl::MutexLock lock(&mutex_);
    standby = standby_.get();
  }
  for (const std::string& image : prepared_.names()) {
    if (!absl::IsNotFound(store.Find(image).status())) continue;
    if (standby != nullptr) standby->Forget(image);
    prepared_.Forget(image);
    absl::MutexLock lock(&mutex_);
    files_recorded_.erase(image);
  }
  auto pagers = ConnectToRunningPagers(store);
  if (!pagers.ok()) return;
  for (PagerClient& pager : *pagers) pager.ForgetRemovedImages(collected).IgnoreError();
}

absl::StatusOr<PagerClient> CloneStarter::ConnectToPager(const store::Store& store) {
  return pager_.Connect(pager_.PlaceFor(store.path()));
}

absl::Status CloneStarter::MakeSandboxAhead(const criu::Installation& criu) {
  RK_ASSIGN_OR_RETURN(SandboxPool * pool, Pool(criu));
  return pool->Expect(SandboxKind());
}

absl::StatusOr<PagerClient> CloneStarter::ConnectToRunningPager(const store::Store& store) const {
  return PagerClient::ConnectToRunning(pager_.PlaceFor(store.path()));
}

absl::StatusOr<std::vector<PagerClient>> CloneStarter::ConnectToRunningPagers(
    const store::Store& store) const {
  return PagerClient::ConnectToAllRunning(pager_.PlaceFor(store.path()));
}

std::vector<std::string> CloneStarter::KeptWith(const criu::Installation& criu) const {
  std::vector<std::string> kept = kept_;
  kept.push_back(runtime_directory_);
  // It may just be starting, and loads its libraries.
  for (const std::string& part : criu.command) {
    if (part.find('/') == 0 && part.rfind('/') > 0) kept.push_back(part.substr(0, part.rfind('/')));
  }
  return kept;
}

absl::StatusOr<SandboxPool*> CloneStarter::Pool(const criu::Installation& criu) {
  absl::MutexLock lock(&pool_mutex_);
  if (!pool_) {
    Cgroup::RemoveLeftovers();
    RK_ASSIGN_OR_RETURN(pool_, SandboxPool::Start(absl::StrCat(runtime_directory_, "/s"), criu, pool_size_));
  }
  return pool_.get();
}

void CloneStarter::RecordTouchedFiles(store::Store& store, const store::ImageInfo& image, pid_t root,
                                      const OpenStore& writable) {
  {
    absl::MutexLock lock(&mutex_);
    if (!files_recorded_.insert(image.digest).second) return;
  }
  FileIdentities::Checked checked;
  std::shared_ptr<const TemporaryFiles> own;
  if (const auto prepared = prepared_.Find(image.digest)) {
    checked = prepared->uncovered;
    own = prepared->temporary;
  }
  absl::StatusOr<std::vector<TouchedFile>> known = ReadTouchedFiles(store, image.digest);
  if (!known.ok() && !absl::IsNotFound(known.status())) return;
  const std::vector<TouchedFile> before = known.value_or(std::vector<TouchedFile>());
  absl::StatusOr<std::vector<TouchedFile>> found = known.ok() ? before : FindTouchedFiles(root);
  if (!found.ok()) {
    // The next copy tells.
    absl::MutexLock lock(&mutex_);
    files_recorded_.erase(image.digest);
    return;
  }
  std::vector<TouchedFile>& files = *found;
  if (own) std::erase_if(files, [&own](const TouchedFile& file) { return own->Has(file.path); });
  for (TouchedFile& file : files) {
    auto was = checked.find(file.path);
    if (was != checked.end()) file.checked = was->second;
  }
  if (files == before) return;
  const absl::StatusOr<std::shared_ptr<store::Store>> keeper = writable();
  if (!keeper.ok()) return Log(LogLevel::kDebug, keeper.status().message());
  absl::Status kept = (*keeper)->PutNote(image, store::kTouchedFilesNote, EncodeTouchedFiles(files));
  if (kept.ok() || absl::IsNotFound(kept)) return;  // it was removed meanwhile
  Log(LogLevel::kWarning,
      absl::StrCat("keeping the list of files that ", image.reference, " touches: ", kept.message()));
}

void CloneStarter::ForgetTouchedFiles(store::Store& store, const std::string& image) {
  store.RemoveNote(image, store::kTouchedFilesNote).IgnoreError();
  absl::MutexLock lock(&mutex_);
  files_recorded_.erase(image);
}

absl::StatusOr<PreparedImages::Image> CloneStarter::PrepareFirst(
    store::Store& store, const criu::Installation& criu, const CloneOptions& options, const BoundPaths& binds,
    std::optional<FilePrefetch>* prefetch, Timeline* timeline) {
  const std::string& image = options.image;
  // Who brings descriptors along gets one that is made for them.
  std::optional<SandboxKind> kind;
  if (options.stdio.empty()) kind = SandboxKind{options.network, options.limits.any()};
  absl::StatusOr<PreparedImages::Image> prepared;
  Timeline of_image, of_pager, of_pool;
  // What fails in the other parts fails again where it is needed, and is told there.
  InParallel(3, [&](size_t part) {
    if (part == 0) {
      prepared = prepared_.Prepare(store, criu, image, binds, KeptWith(criu), prefetch, &of_image);
    } else if (part == 1) {
      const int64_t begin = MonotonicNanos();
      auto pager = ConnectToPager(store);
      if (pager.ok()) pager->Expect(image).IgnoreError();
      of_pager.push_back(SpanSince(begin, "rekindle", "prepare the pager", "pager up"));
    } else {
      const int64_t begin = MonotonicNanos();
      auto pool = Pool(criu);
      if (pool.ok() && kind) (*pool)->Expect(*kind).IgnoreError();
      of_pool.push_back(SpanSince(begin, "rekindle", "prepare sandboxes", "sandbox pool up"));
    }
  });
  for (Timeline* part : {&of_image, &of_pager, &of_pool}) {
    std::move(part->begin(), part->end(), std::back_inserter(*timeline));
  }
  return prepared;
}

}  // namespace rekindle::restore
