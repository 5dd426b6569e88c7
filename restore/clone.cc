#include "restore/clone.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/cgroup_memory.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/packet_socket.h"
#include "base/parallel.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"
#include "restore/bound_paths.h"
#include "restore/clone_run.h"
#include "restore/compatibility.h"
#include "restore/job_logs.h"
#include "restore/opened_files_check.h"
#include "restore/restore.h"
#include "restore/standby.h"

namespace rekindle::restore {
namespace {

constexpr uint64_t kMostDefaultCacheBytes = uint64_t{1} << 30;
constexpr uint64_t kPartForCache = 4;
// Of the memory that is free: what may be kept of images' shared memory for their next copies. It is in
// nobody's limit, and can't be taken back by the kernel.
constexpr uint64_t kPartForSharedMemory = 8;

}  // namespace

uint64_t DefaultCacheBytes() {
  static const uint64_t bytes = [] {
    const absl::StatusOr<uint64_t> available = OwnAvailableMemoryBytes();
    return available.ok() ? std::min(kMostDefaultCacheBytes, *available / kPartForCache)
                          : kMostDefaultCacheBytes;
  }();
  return bytes;
}

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

absl::StatusOr<bool> Listens(const store::ImageReader& image) {
  RK_ASSIGN_OR_RETURN(std::string files, image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, "files.img")));
  return criu::HasListeningSocket(files);
}

absl::StatusOr<std::vector<criu::RegularFile>> FilesOf(const store::ImageReader& image) {
  auto read = [&image](absl::string_view name) {
    return image.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, name));
  };
  RK_ASSIGN_OR_RETURN(std::string files, read("files.img"));
  absl::StatusOr<std::string> remaps = read("remap-fpath.img");
  if (!remaps.ok() && !absl::IsNotFound(remaps.status())) return remaps.status();
  return criu::ParseRegularFiles(files, remaps.ok() ? *remaps : "");
}

absl::Status CheckPrograms(const BoundPaths& bound, FileIdentities::Checked checked,
                           PreparedImage& prepared) {
  std::vector<criu::RegularFile> files = *prepared.files;
  if (prepared.temporary != nullptr)
    std::erase_if(files, [&](const criu::RegularFile& file) {
      return prepared.temporary->Has(file.path) && !bound.Cover(file.path);
    });
  std::multimap<std::string, std::string> names;  // by where they lie
  std::set<std::string> covered;                  // of these places: what another file of the image is there
  for (criu::RegularFile& file : files) {
    const std::string name = std::exchange(file.path, bound.OnMachine(file.path));
    names.emplace(file.path, name);
    if (bound.Cover(name)) covered.insert(file.path);
  }
  for (const std::string& place : covered) checked.erase(place);
  RK_ASSIGN_OR_RETURN(prepared.programs, FileIdentities::Check(files, checked));
  for (const std::string& path : prepared.programs.known()) {
    for (auto [at, end] = names.equal_range(path); at != end; ++at)
      prepared.known_programs.insert(at->second);
  }
  prepared.uncovered = prepared.programs.Lasting();
  for (const std::string& place : covered) prepared.uncovered.erase(place);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TouchedFile>> ReadTouchedFiles(store::Store& store, const std::string& image) {
  RK_ASSIGN_OR_RETURN(std::string note, store.GetNote(image, store::kTouchedFilesNote));
  return DecodeTouchedFiles(note);
}

// A needed file, and the folder that it works in, may lie in what is a copy's own: then it has them.
void ForgetOwn(const TemporaryFiles& own, const BoundPaths& bound, v1::JobManifest* manifest) {
  const auto is_own = [&](const std::string& path) { return own.Has(path) && !bound.Cover(path); };
  if (is_own(manifest->working_directory())) manifest->clear_working_directory();
  const auto files = manifest->mutable_files();
  for (int i = files->size(); i-- > 0;) {
    if (is_own(files->at(i).path())) files->DeleteSubrange(i, 1);
  }
}

// `checked`: see FileIdentities::Check.
absl::Status CheckFilesOf(const BoundPaths& bound, FileIdentities::Checked checked, PreparedImage& prepared) {
  RK_RETURN_IF_ERROR(CheckPrograms(bound, std::move(checked), prepared));
  prepared.locks = prepared.locks_of_image;
  for (JobLock& lock : prepared.locks) lock.path = bound.OnMachine(lock.path);
  v1::JobManifest manifest = prepared.manifest;
  const std::set<std::string> shared_memory = prepared.shared_memory->paths();
  manifest.clear_files();
  for (const v1::NeededFile& file : prepared.manifest.files()) {
    if (shared_memory.contains(file.path())) continue;
    v1::NeededFile& needed = *manifest.add_files() = file;
    // What is put in its place is to be another one.
    if (bound.Cover(file.path())) {
      needed.clear_beginning();
      needed.clear_inode();
    }
  }
  if (prepared.temporary) ForgetOwn(*prepared.temporary, bound, &manifest);
  manifest = bound.OnMachine(std::move(manifest));
  std::vector<std::string> warnings;
  prepared.outputs = CheckFiles(manifest, prepared.user, &warnings);
  if (prepared.outputs.ok()) return absl::OkStatus();
  return CheckFiles(manifest, prepared.user, &warnings, SeenFrom::kMachine, NeededFiles::kAll,
                    FilesReplacedByLog(manifest));
}

// Those that lie over files of the image.
BoundPaths BindsOver(const v1::JobManifest& manifest, const CloneOptions& options) {
  BoundPaths bound(options.binds);
  return bound.CoverSomethingOf(manifest) ? bound : BoundPaths();
}

absl::Status AsWithBinds(const absl::Status& status, const BoundPaths& bound) {
  return bound.empty() ? status : Annotate(status, "as a copy with these binds (--bind) has them");
}

// Of CloneStarter::with_binds_.
std::string NameWithBinds(const std::string& digest, const BoundPaths& bound) {
  return absl::StrCat(digest, "\n", bound.Text());
}
std::string DigestOf(const std::string& name) { return name.substr(0, name.find('\n')); }

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

absl::StatusOr<bool> MayStandBy(const store::ImageReader& image, const v1::JobManifest& manifest) {
  if (manifest.control_sockets().empty()) return false;
  for (const store::ObjectInfo& object : image.objects()) {
    absl::string_view name = object.name;
    if (object.paged || !absl::ConsumePrefix(&name, v1::kCriuFilePrefix)) continue;
    absl::StatusOr<bool> timer = false;
    if (absl::StartsWith(name, "core-")) {
      RK_ASSIGN_OR_RETURN(std::string content, image.ReadBlob(object.name));
      timer = criu::HasArmedTimer(content);
    } else if (name == "files.img") {
      RK_ASSIGN_OR_RETURN(std::string content, image.ReadBlob(object.name));
      timer = criu::HasArmedTimerFile(content);
    }
    RK_RETURN_IF_ERROR(timer.status());
    if (*timer) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<CloneResult> CloneStarter::Start(store::Store& store, const criu::Installation& criu,
                                                const CloneOptions& options) {
  Stopwatch watch;
  const int64_t begin = MonotonicNanos();
  std::shared_ptr<const PreparedImage> image = PreparedFor(options);
  const bool prepared_before = image != nullptr;
  std::optional<FilePrefetch> prefetch;  // goes on while CRIU works
  Timeline preparations;
  if (!prepared_before) {
    auto prepared = PrepareAgain(options, &preparations);
    if (absl::IsNotFound(prepared.status()))
      prepared = PrepareFirst(store, criu, options, &prefetch, &preparations);
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
    made = Make(*image, {options.network, options.limits.any()}, criu, PagerOf(store), options, nullptr);
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
  RK_ASSIGN_OR_RETURN(PagerClient pager, ConnectToPager(place));
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
    auto make = [this, criu, place = PagerOf(store)](
                    const StandbyKind& kind, int cancel_fd,
                    const StandbyPool::Park& park) -> absl::StatusOr<CloneResult> {
      const std::shared_ptr<const PreparedImage> image = Prepared(&CloneStarter::prepared_, kind.image);
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
      cache_bytes_(cache_bytes),
      pool_size_(pool_size),
      standby_size_(standby_size),
      kept_(std::move(kept)) {}

CloneStarter::~CloneStarter() {
  std::unique_ptr<StandbyPool> standby;
  {
    absl::MutexLock lock(&mutex_);
    standby = std::move(standby_);
  }
  standby.reset();
  if (stop_.valid()) ::eventfd_write(stop_.get(), 1);
  for (std::thread& waiter : waiters_) waiter.join();
}

void CloneStarter::WaitFor(Subprocess pager) {
  if (!stop_.valid()) stop_.Reset(::eventfd(0, EFD_CLOEXEC));
  waiters_.emplace_back([pager = std::move(pager), stop = stop_.get()]() mutable {
    pollfd entries[2] = {{pager.pidfd(), POLLIN, 0}, {stop, POLLIN, 0}};
    while (::poll(entries, 2, -1) < 0 && errno == EINTR) {
    }
    if (entries[0].revents != 0) {
      pager.Wait().IgnoreError();
    } else {
      pager.Release();
    }
  });
}

void CloneStarter::ForgetImages() {
  KeptImages::Gone forgotten;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  forgotten = prepared_.RemoveAll();
  auto with_binds = with_binds_.RemoveAll();
  std::move(with_binds.begin(), with_binds.end(), std::back_inserter(forgotten));
}

void CloneStarter::ForgetRemovedImages(store::Store& store) {
  std::vector<std::string> images;
  StandbyPool* standby;
  {
    absl::MutexLock lock(&mutex_);
    images = prepared_.names();
    standby = standby_.get();
  }
  for (const std::string& image : images) {
    if (!absl::IsNotFound(store.Find(image).status())) continue;
    if (standby != nullptr) standby->Forget(image);
    KeptImages::Gone forgotten, orphans;  // not destroyed under the lock
    absl::MutexLock lock(&mutex_);
    forgotten = prepared_.Remove(image);
    orphans = TakeOrphans();
    files_recorded_.erase(image);
  }
  auto pagers = ConnectToRunningPagers(store);
  if (!pagers.ok()) return;
  for (PagerClient& pager : *pagers) pager.ForgetRemovedImages().IgnoreError();
}

absl::StatusOr<PagerClient> CloneStarter::ConnectToPager(const store::Store& store) {
  return ConnectToPager(PagerOf(store));
}

absl::StatusOr<PagerClient> CloneStarter::ConnectToPager(const PagerPlace& place) {
  absl::StatusOr<PagerClient> client = absl::UnknownError("");
  bool found = false;  // one that runs, and may have a cache of another size
  {
    absl::MutexLock lock(&mutex_);
    Subprocess started;
    client = PagerClient::Connect(place, &started);
    const bool is_new = started.running();
    if (is_new) {
      WaitFor(std::move(started));
      kept_pager_.reset();
    }
    if (client.ok() && !kept_pager_) {
      Subprocess none;
      auto kept = PagerClient::Connect(place, &none);
      if (kept.ok()) kept_pager_.emplace(*std::move(kept));
      found = kept_pager_ && !is_new;
    }
  }
  // Not under the lock, which everybody takes who starts a copy: it may be busy.
  if (found && cache_bytes_) {
    auto resized = client->Resize(*cache_bytes_);
    if (!resized.ok()) {
      Log(LogLevel::kWarning, absl::StrCat("giving the pager that runs a cache of ", *cache_bytes_,
                                           " bytes: ", resized.status().message()));
    }
  }
  return client;
}

absl::Status CloneStarter::MakeSandboxAhead(const criu::Installation& criu) {
  RK_ASSIGN_OR_RETURN(SandboxPool * pool, Pool(criu));
  return pool->Expect(SandboxKind());
}

absl::StatusOr<PagerClient> CloneStarter::ConnectToRunningPager(const store::Store& store) const {
  return PagerClient::ConnectToRunning(PagerOf(store));
}

absl::StatusOr<std::vector<PagerClient>> CloneStarter::ConnectToRunningPagers(
    const store::Store& store) const {
  return PagerClient::ConnectToAllRunning(PagerOf(store));
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

PagerPlace CloneStarter::PagerOf(const store::Store& store) const {
  return {runtime_directory_, store.path(), cache_bytes_ ? *cache_bytes_ : DefaultCacheBytes()};
}

absl::StatusOr<SandboxPool*> CloneStarter::Pool(const criu::Installation& criu) {
  absl::MutexLock lock(&mutex_);
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
  {
    absl::MutexLock lock(&mutex_);
    if (const auto prepared = prepared_.Find(image.digest)) {
      checked = prepared->uncovered;
      own = prepared->temporary;
    }
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

std::shared_ptr<const PreparedImage> CloneStarter::PreparedFor(const CloneOptions& options) {
  const BoundPaths bound(options.binds);
  if (bound.empty()) return Prepared(&CloneStarter::prepared_, options.image);
  auto with_binds = Prepared(&CloneStarter::with_binds_, NameWithBinds(options.image, bound));
  if (with_binds != nullptr) return with_binds;
  auto image = Prepared(&CloneStarter::prepared_, options.image);
  return image != nullptr && !bound.CoverSomethingOf(image->manifest) ? image : nullptr;
}

std::shared_ptr<const PreparedImage> CloneStarter::Prepared(KeptImages CloneStarter::*kept,
                                                            const std::string& name) {
  std::shared_ptr<const PreparedImage> found;
  {
    absl::MutexLock lock(&mutex_);
    found = (this->*kept).Use(name);
    // It goes on being used, and with it what it shares.
    if (kept == &CloneStarter::with_binds_ && found != nullptr) prepared_.Use(found->info.digest);
  }
  if (found == nullptr || !found->checked) return nullptr;
  if (found->programs.Unchanged()) return found;
  KeptImages::Gone changed, orphans;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  if ((this->*kept).Find(name) == found) changed = (this->*kept).Remove(name);
  orphans = TakeOrphans();
  return nullptr;
}

CloneStarter::KeptImages::Gone CloneStarter::TakeOrphans() {
  KeptImages::Gone gone;
  for (const std::string& name : with_binds_.names()) {
    if (prepared_.Find(DigestOf(name)) != nullptr) continue;
    for (auto& image : with_binds_.Remove(name)) gone.push_back(std::move(image));
  }
  return gone;
}

void CloneStarter::Keep(const CloneOptions& options, std::shared_ptr<const PreparedImage> image) {
  const std::string& digest = options.image;
  const BoundPaths bound = BindsOver(image->manifest, options);
  const uint64_t room = OwnAvailableMemoryBytes().value_or(0) / kPartForSharedMemory;
  // The files are those of one copy alone.
  auto of_image = image;
  if (!bound.empty() || !image->outputs.ok()) {
    auto unchecked = std::make_shared<PreparedImage>(*image);
    unchecked->checked = false;
    unchecked->programs = FileIdentities();
    of_image = std::move(unchecked);
  }
  KeptImages::Gone gone, more, orphans;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  if (of_image->checked || prepared_.Use(digest) == nullptr)
    gone = prepared_.Keep(digest, of_image, of_image->bytes(), room);
  // When its outputs are back it is another.
  if (!bound.empty() && image->outputs.ok())
    more = with_binds_.Keep(NameWithBinds(digest, bound), std::move(image), 0, room);
  orphans = TakeOrphans();
}

absl::StatusOr<std::shared_ptr<const PreparedImage>> CloneStarter::PrepareFirst(
    store::Store& store, const criu::Installation& criu, const CloneOptions& options,
    std::optional<FilePrefetch>* prefetch, Timeline* timeline) {
  const std::string& image = options.image;
  // Who brings descriptors along gets one that is made for them.
  std::optional<SandboxKind> kind;
  if (options.stdio.empty()) kind = SandboxKind{options.network, options.limits.any()};
  absl::StatusOr<std::shared_ptr<const PreparedImage>> prepared;
  Timeline of_image, of_pager, of_pool;
  // What fails in the other parts fails again where it is needed, and is told there.
  InParallel(3, [&](size_t part) {
    if (part == 0) {
      prepared = Prepare(store, criu, options, prefetch, &of_image);
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

absl::StatusOr<std::shared_ptr<const PreparedImage>> CloneStarter::Prepare(
    store::Store& store, const criu::Installation& criu, const CloneOptions& options,
    std::optional<FilePrefetch>* prefetch, Timeline* timeline) {
  const std::string& image = options.image;
  int64_t begin = MonotonicNanos();
  auto step = [&](const char* name, std::map<std::string, int64_t> numbers = {}) {
    timeline->push_back(SpanSince(begin, "rekindle", "prepare", name, std::move(numbers)));
    begin = MonotonicNanos();
  };
  auto prepared = std::make_shared<PreparedImage>();
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store.OpenImage(image));
  prepared->info = reader->info();
  RK_ASSIGN_OR_RETURN(prepared->manifest, ReadJobManifest(*reader));
  if (prepared->manifest.has_gpu()) {
    return absl::UnimplementedError(absl::StrCat(
        "cloning ", image, ": it has GPU state, which only one copy could have; restore it without --clone"));
  }
  const auto& stdio = prepared->manifest.stdio();
  if (prepared->manifest.externals_size() > 0 ||
      std::any_of(stdio.begin(), stdio.end(),
                  [](const v1::StdioSlot& slot) { return slot.kind() == "tty"; })) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cloning ", prepared->info.reference,
        ": the job had a terminal, which its copies can't share; take an image of it started with "
        "'rekindle run', or with input and output that are no terminal"));
  }
  RK_ASSIGN_OR_RETURN(prepared->users, UsersOf(*reader));
  // What an administrator has captured of others is not its user's.
  if (const uid_t owner = prepared->info.owner; owner != 0 && owner == prepared->manifest.uid()) {
    RK_RETURN_IF_ERROR(
        Annotate(CheckAllAreHis(prepared->users, owner), absl::StrCat("cloning ", prepared->info.reference)));
  }
  RK_ASSIGN_OR_RETURN(prepared->user, UserWithBounds(*reader, prepared->manifest));
  RK_ASSIGN_OR_RETURN(prepared->listens, Listens(*reader));
  RK_ASSIGN_OR_RETURN(prepared->locks_of_image, LocksOfJob(*reader));
  RK_ASSIGN_OR_RETURN(auto files, FilesOf(*reader));
  prepared->files = std::make_shared<const std::vector<criu::RegularFile>>(std::move(files));
  RK_ASSIGN_OR_RETURN(prepared->temporary, TemporaryFiles::Read(*reader, prepared->manifest, KeptWith(criu)));
  if (prepared->temporary) {
    std::erase_if(prepared->locks_of_image,
                  [own = prepared->temporary](const JobLock& lock) { return own->Has(lock.path); });
  }
  if (const auto known = KnownOf(image)) {
    prepared->shared_memory = known->shared_memory;
  } else {
    RK_ASSIGN_OR_RETURN(auto shared_memory, CloneSharedMemory::Read(*reader, prepared->manifest));
    prepared->shared_memory = std::make_shared<const CloneSharedMemory>(std::move(shared_memory));
  }
  const BoundPaths bound = BindsOver(prepared->manifest, options);
  RK_ASSIGN_OR_RETURN(prepared->may_stand_by, MayStandBy(*reader, prepared->manifest));
  // A copy that nobody has asked for must not keep others from their files.
  prepared->may_stand_by &= prepared->locks_of_image.empty();
  step("image's records");
  RK_ASSIGN_OR_RETURN(Machine machine, ThisMachine());
  RK_RETURN_IF_ERROR(CheckMachine(prepared->manifest, machine, criu.version));
  step("machine");
  // Both mostly wait for the disk.
  absl::Status checked;
  absl::StatusOr<ImageDirectory> directory = absl::UnknownError("");
  absl::StatusOr<std::vector<TouchedFile>> touched = absl::UnknownError("");
  Timeline of_directory;
  InParallel(2, [&](size_t part) {
    if (part == 0) {
      touched = ReadTouchedFiles(store, image);
      checked = AsWithBinds(
          CheckFilesOf(bound, touched.ok() ? CheckedOf(*touched) : FileIdentities::Checked(), *prepared),
          bound);
      step("programs and files", {{"opened", static_cast<int64_t>(prepared->programs.opened())}});
    } else {
      const int64_t directory_begin = MonotonicNanos();
      std::atomic<uint64_t> bytes{0};
      directory =
          ImageDirectory::Make(*reader, prepared->manifest, runtime_directory_, PagesWanted::kLazy, &bytes);
      of_directory.push_back(
          SpanSince(directory_begin, "rekindle", "prepare CRIU's images", "CRIU's images"));
    }
  });
  std::move(of_directory.begin(), of_directory.end(), std::back_inserter(*timeline));
  if (directory.ok()) RK_RETURN_IF_ERROR(CheckIsNoFirstProcess(prepared->info, directory->tree()));
  RK_RETURN_IF_ERROR(CheckHasNoOtherNamespaces(*reader));
  RK_RETURN_IF_ERROR(checked);
  RK_RETURN_IF_ERROR(directory.status());
  // Much is read for this, so not before what all the rest waits for.
  if (touched.ok()) prefetch->emplace(*std::move(touched));
  RK_RETURN_IF_ERROR(directory->ForgetBuildIds(prepared->known_programs));
  prepared->directory = std::make_shared<const ImageDirectory>(*std::move(directory));
  Keep(options, prepared);
  return prepared;
}

std::shared_ptr<const PreparedImage> CloneStarter::KnownOf(const std::string& image) {
  absl::MutexLock lock(&mutex_);
  return prepared_.Use(image);
}

absl::StatusOr<std::shared_ptr<const PreparedImage>> CloneStarter::PrepareAgain(const CloneOptions& options,
                                                                                Timeline* timeline) {
  const int64_t begin = MonotonicNanos();
  const std::shared_ptr<const PreparedImage> known = KnownOf(options.image);
  if (known == nullptr) return absl::NotFoundError("it was not prepared before");
  const BoundPaths bound = BindsOver(known->manifest, options);
  auto prepared = std::make_shared<PreparedImage>(*known);
  prepared->checked = true;
  prepared->known_programs.clear();
  RK_RETURN_IF_ERROR(AsWithBinds(CheckFilesOf(bound, known->uncovered, *prepared), bound));
  if (prepared->known_programs != known->known_programs)
    return absl::NotFoundError("CRIU looks at other programs");
  timeline->push_back(SpanSince(begin, "rekindle", "prepare", "programs and files",
                                {{"opened", static_cast<int64_t>(prepared->programs.opened())}}));
  Keep(options, prepared);
  return prepared;
}

}  // namespace rekindle::restore
