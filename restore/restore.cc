#include "restore/restore.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <iterator>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/cgroup_folders.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/number_claim.h"
#include "base/packet_socket.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/stoppable_thread.h"
#include "criu/command_line.h"
#include "criu/failure.h"
#include "criu/process_tree.h"
#include "criu/restore_log.h"
#include "criu/restore_session.h"
#include "criu/terminal_files.h"
#include "criu/user_bounds.h"
#include "rekindle/v1/image_layout.h"
#include "restore/compatibility.h"
#include "restore/criu_files.h"
#include "restore/files_behind_links.h"
#include "restore/gpu_record.h"
#include "restore/image_directory.h"
#include "restore/job_logs.h"
#include "restore/left_connections.h"
#include "restore/lock_check.h"
#include "restore/lower_limits.h"
#include "restore/opened_files_check.h"
#include "restore/our_numbers.h"
#include "restore/socket_folders.h"
#include "restore/thread_placement.h"
#include "restore/withheld_pages.h"

namespace rekindle::restore {
namespace {

constexpr uint32_t kNewestManifestFormat = 1;
constexpr absl::Duration kProgressEvery = absl::Milliseconds(100);
constexpr char kClaims[] = "restores.claims";

// Reports the bytes that other threads move while the main thread waits.
class ProgressTicker {
 public:
  ProgressTicker(RestoreObserver* observer, const std::atomic<uint64_t>* done, uint64_t total,
                 const Stopwatch* watch, const std::atomic<const char*>* phase) {
    if (!observer) return;
    const absl::Status started = thread_.Start([this, observer, done, total, watch, phase] {
      while (thread_.Pause(kProgressEvery)) {
        const char* name = phase->load();
        // Null: another one tells of its own.
        if (name != nullptr) observer->OnProgress({name, done->load(), total, watch->seconds()});
      }
    });
    if (!started.ok()) Log(LogLevel::kWarning, absl::StrCat("no progress is shown: ", started.message()));
  }

 private:
  StoppableThread thread_;
};

// Since Linux 6.15 a process that has been reaped keeps its numbers for a moment: nobody is to be seen who
// has them, and yet they can't be given. CRIU finds out before anything of the job runs.
constexpr int kTriesForNumbers = 4;
constexpr int kNumberIsFreeAfterMs = 20;
bool IsNumberTaken(const absl::Status& status) {
  const std::string id = criu::DiagnosisId(status);
  return id == "pid-in-use" || id == "thread-id-in-use";
}

// The steps of one restore, in the order in which Restore() takes them.
class RestoreRun : public criu::RestoreObserver {
 public:
  RestoreRun(const store::ImageReader& image, const criu::Installation& criu, gpu::JobMover* gpu,
             const RestoreOptions& options, restore::RestoreObserver* observer)
      : image_(&image), criu_(criu), gpu_(gpu), options_(options), observer_(observer) {}

  // Everything that can be refused before anything is started.
  absl::Status Plan() {
    result_.image = image_->info();
    if (options_.caller != 0 && image_->info().owner != options_.caller) {
      return absl::PermissionDeniedError(absl::StrCat("restoring ", image_->info().digest,
                                                      ": it belongs to uid ", image_->info().owner,
                                                      " and you are uid ", options_.caller));
    }
    RK_ASSIGN_OR_RETURN(result_.manifest, ReadJobManifest(*image_));
    if (options_.caller != 0) {
      RK_RETURN_IF_ERROR(Annotate(CheckAllAreHis(*image_, options_.caller),
                                  absl::StrCat("restoring ", image_->info().digest)));
    }
    RK_ASSIGN_OR_RETURN(user_, UserWithBounds(*image_, result_.manifest));
    // Of what root has given to another user's job, on another machine say, an administrator knows.
    follows_any_links_ = options_.ignore_mismatch && options_.caller == 0;
    if (follows_any_links_) user_.reset();
    if (options_.into != 0) {
      RK_ASSIGN_OR_RETURN(namespaces_, criu::JobNamespaces::Around(options_.into));
      RK_RETURN_IF_ERROR(CheckNotFrozen());
    }
    namespaces_.LearnKernel(criu_, options_.runtime_directory);
    RK_ASSIGN_OR_RETURN(Machine machine, ThisMachine());
    if (!options_.ignore_mismatch) RK_RETURN_IF_ERROR(CheckMachine(result_.manifest, machine, criu_.version));
    RK_ASSIGN_OR_RETURN(std::string pstree, ReadCriuFile(*image_, "pstree.img"));
    RK_ASSIGN_OR_RETURN(std::vector<criu::PstreeEntry> tree, criu::ParsePstree(pstree));
    RK_RETURN_IF_ERROR(CheckIsNoFirstProcess(image_->info(), tree));
    RK_RETURN_IF_ERROR(CheckHasNoOtherNamespaces(*image_));
    if (!namespaces_.entered()) RK_RETURN_IF_ERROR(CheckCanHaveOwnMounts(image_->info()));
    RK_RETURN_IF_ERROR(ClaimNumbers(tree));
    RK_RETURN_IF_ERROR(CheckIds(tree));
    RK_RETURN_IF_ERROR(
        CheckNeededFiles(options_.roll_back ? NeededFiles::kBeyondRollBack : NeededFiles::kAll));
    RK_ASSIGN_OR_RETURN(std::vector<JobLock> locks, LocksOfJob(*image_));
    const bool carries_connections = !options_.tcp_close && !result_.manifest.tcp_close();
    const absl::Status free = namespaces_.Within([&] {
      absl::Status status = CheckLocksAreFree(locks, options_.cancel_fd);
      if (status.ok() && carries_connections) status = EndLeftConnections(*image_);
      return status.ok() ? FreePorts(*image_) : status;
    });
    RK_RETURN_IF_ERROR(free);
    RK_RETURN_IF_ERROR(CheckMemory(PageBytes(), MemoryCountsFor()));
    RK_RETURN_IF_ERROR(PlanGpus());
    EndPhase("plan");
    return absl::OkStatus();
  }

  absl::Status LayOutFiles() {
    phase_name_ = "metadata";
    ProgressTicker ticker(observer_, &bytes_done_, PageBytes(), &total_, &phase_name_);
    RK_ASSIGN_OR_RETURN(ImageDirectory directory,
                        ImageDirectory::Make(*image_, result_.manifest, options_.runtime_directory,
                                             PagesWanted::kEager, &bytes_done_));
    directory_ = std::make_unique<ImageDirectory>(std::move(directory));
    // In a container it goes with that.
    if (!namespaces_.entered()) RK_RETURN_IF_ERROR(directory_->NoteNamelessMemory(result_.manifest));
    EndPhase("metadata");
    return absl::OkStatus();
  }

  bool LacksWorkingDirectory() const {
    const std::string& folder = result_.manifest.working_directory();
    bool lacks = false;
    const absl::Status looked = namespaces_.Within([&] {
      struct stat info;
      lacks = !folder.empty() && ::stat(folder.c_str(), &info) != 0 && errno == ENOENT;
      return absl::OkStatus();
    });
    return looked.ok() && lacks;
  }

  // It has only what was put back: the rest may be where it was moved to.
  void WarnOfWorkingDirectory() {
    result_.warnings.push_back(absl::StrCat("the job's working folder ", result_.manifest.working_directory(),
                                            " was gone, and was made again: of what was in it there is only "
                                            "what the image has. If it was moved, end the "
                                            "job, move it back, and restore again"));
  }

  // Before files are rolled back, which has no way back.
  absl::Status MakeSocketFolders() {
    return namespaces_.Within([this]() -> absl::Status {
      auto made = SocketFolders::Make(result_.manifest, "/", user_, SocketFolders::Names::kOfOneJob);
      if (!made.ok()) return Annotate(made.status(), absl::StrCat("restoring ", image_->info().digest));
      socket_folders_ = *std::move(made);
      return absl::OkStatus();
    });
  }

  // As late as can be: it is done also when the restore fails then. What is cut off waits until that can't
  // be.
  absl::Status RollBackFiles() {
    if (!options_.roll_back) return absl::OkStatus();
    phase_name_ = "files";
    if (pollfd cancelled{options_.cancel_fd, POLLIN, 0}; ::poll(&cancelled, 1, 0) > 0)
      return absl::CancelledError("the restore was cancelled before anything was changed");
    // Not under a job that has come to life meanwhile.
    RK_RETURN_IF_ERROR(CheckIds(directory_->tree()));
    const absl::Status status = namespaces_.Within([&]() -> absl::Status {
      RK_ASSIGN_OR_RETURN(cut_last_, options_.roll_back(*image_, result_.manifest));
      return absl::OkStatus();
    });
    if (!status.ok()) return Annotate(status, absl::StrCat("restoring ", image_->info().digest));
    RK_RETURN_IF_ERROR(
        CheckNeededFiles(options_.files_settled ? NeededFiles::kAfterRollBack : NeededFiles::kAll));
    EndPhase("files");
    return absl::OkStatus();
  }

  absl::Status RunCriu() {
    phase_name_ = "criu";
    ProgressTicker ticker(observer_, &bytes_done_, PageBytes(), &total_, &phase_name_);
    criu::RestoreOptions options = CriuOptions();
    RK_RETURN_IF_ERROR(ReplaceStdio(&options));
    RK_RETURN_IF_ERROR(WaitForGpuMoment(&options));
    result_.command_lines.push_back(
        criu::ShellLine(criu::FullCommand(criu_, criu::RestoreArguments(options))));
    criu_began_unix_ns_ = UnixNanos();
    absl::StatusOr<criu::RestoredTree> tree =
        criu::RunRestore(criu_, options, namespaces_, this, options_.cancel_fd);
    for (int tries = 1; IsNumberTaken(tree.status()) && tries < kTriesForNumbers; ++tries) {
      if (!CheckIds(directory_->tree()).ok()) break;
      pollfd cancelled{options_.cancel_fd, POLLIN, 0};
      if (::poll(&cancelled, 1, kNumberIsFreeAfterMs) > 0) break;
      tree = criu::RunRestore(criu_, options, namespaces_, this, options_.cancel_fd);
    }
    gpu_listener_.reset();
    if (!tree.ok()) {
      // Of this CRIU knows only what came of it.
      if (gpu_status_ && !gpu_status_->ok()) return WithoutGpuState(*gpu_status_);
      if (!cut_status_.ok()) return Annotate(cut_status_, absl::StrCat("restoring ", image_->info().digest));
      return KeepLogs(tree.status());
    }
    result_.root = tree->root;
    WarnOfLowerLimits();
    SpreadThreads(Processes());
    AddSpan("criu", phase_begin_ns_);
    std::move(tree->timeline.begin(), tree->timeline.end(), std::back_inserter(result_.timeline));
    result_.phases.emplace_back("criu", phase_.seconds() - pages_seconds_ - gpu_seconds_);
    result_.phases.emplace_back("pages", pages_seconds_);
    phase_.Restart();
    phase_begin_ns_ = MonotonicNanos();
    return absl::OkStatus();
  }

  void WarnOfLowerLimits() {
    const auto core = ReadCriuFile(*image_, absl::StrCat("core-", directory_->tree().front().pid, ".img"));
    if (!core.ok()) return;
    for (std::string& lower : LowerLimits(*core, result_.root)) result_.warnings.push_back(std::move(lower));
  }

  // All tasks exist and stand still: CRIU calls here.
  absl::Status TasksReady(pid_t root) override {
    ready_root_ = root;
    if (namespaces_.entered()) numbers_ = OurNumbers(namespaces_.AllNumbers());
    const std::set<pid_t> ended_before = EndedProcesses();  // as zombies they are part of the image
    const absl::Status status = CompleteTasks(root);
    if (absl::IsCancelled(status)) return status;
    // What is looked for in one that was killed is not there, in whatever words that is said. And CRIU would
    // wait for it without end, since nobody tells it of a death here.
    for (const pid_t process : EndedProcesses()) {
      if (ended_before.contains(process)) continue;
      return absl::AbortedError(absl::StrCat("process ", process,
                                             " of the job was killed while it was being restored: try again; "
                                             "when nobody killed it, look for the "
                                             "out-of-memory killer in the system's log",
                                             status.ok() ? "" : absl::StrCat(" (", status.message(), ")")));
    }
    return status;
  }

  // The tree runs; its CUDA calls wait until its device memory is where it was.
  absl::Status RestoreGpuState() {
    if (!result_.manifest.has_gpu()) return absl::OkStatus();
    if (!gpu_status_) PutOnGpu(result_.root, nullptr);
    absl::Status status = *gpu_status_;
    result_.phases.emplace_back("gpu", gpu_seconds_);
    if (status.ok()) {
      // Unless it was done while all stood still.
      status = CutFilesOff();
      if (status.ok()) return status;
      criu::KillTree(result_.root, /*reap_root=*/true);
      return Annotate(status, absl::StrCat("restoring ", image_->info().digest));
    }
    // A job without its device state must not go on.
    criu::KillTree(result_.root, /*reap_root=*/true);
    return WithoutGpuState(status);
  }

  absl::Status WithoutGpuState(const absl::Status& why) const {
    return Annotate(
        why, absl::StrCat("restoring ", image_->info().digest, ": its GPU state; nothing is left running"));
  }

  RestoreResult TakeResult() {
    socket_folders_.Keep();
    result_.total_seconds = total_.seconds();
    return std::move(result_);
  }

 private:
  absl::Status CompleteTasks(pid_t root) {
    Stopwatch watch;
    const int64_t begin = MonotonicNanos();
    RK_RETURN_IF_ERROR(CheckOpened(root));
    socket_folders_.RemovePassing();
    if (!options_.log.empty()) {
      UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, root, 0)));
      RK_RETURN_IF_ERROR(AppendToLogs(pidfd.get(), result_.manifest));
    }
    if (options_.cgroups) {  // before its memory comes, which is then theirs
      for (const pid_t process : Processes()) RK_RETURN_IF_ERROR(options_.cgroups->Join(process));
    }
    v1::JobManifest manifest_elsewhere;
    std::vector<criu::PstreeEntry> tree_elsewhere;
    std::vector<WithheldTask> withheld_elsewhere;
    const v1::JobManifest& manifest = InOurs(result_.manifest, &manifest_elsewhere);
    for (std::string& warning : GiveManners(manifest)) result_.warnings.push_back(std::move(warning));
    for (std::string& warning :
         PlaceThreads(manifest, InOurs(directory_->tree(), &tree_elsewhere), options_.placed_like)) {
      result_.warnings.push_back(std::move(warning));
    }
    phase_name_ = "pages";
    const uint64_t before = bytes_done_;
    absl::Status status = FillWithheld(*image_, options_.in_memory,
                                       InOurs(directory_->withheld(), &withheld_elsewhere), &bytes_done_);
    pages_seconds_ = watch.seconds();
    AddSpan("pages", begin, {{"bytes", static_cast<int64_t>(bytes_done_ - before)}});
    phase_name_ = "criu";
    if (status.ok() && options_.before_cut) status = namespaces_.Within(options_.before_cut);
    if (status.ok() && options_.before_running) status = options_.before_running(root);
    if (status.ok() && !result_.manifest.has_gpu()) status = CutFilesOff();
    return status;
  }

  // Once.
  absl::Status CutFilesOff() {
    if (!options_.cut_off || std::exchange(cut_, true)) return absl::OkStatus();
    return namespaces_.Within(options_.cut_off);
  }

  // With `keeper`: CRIU has all threads stand still.
  void PutOnGpu(pid_t root, gpu::ThreadKeeper* keeper) {
    phase_name_ = nullptr;
    Stopwatch watch;
    const int64_t begin = MonotonicNanos();
    if (observer_) observer_->OnProgress({"gpu", 0, GpuBytes(), total_.seconds()});
    const gpu::GpuRecord record = InOurNumbers(FromProto(result_.manifest.gpu()), numbers_);
    gpu::MoveProgress progress;
    if (observer_) {
      progress = [this](const gpu::MoveStep& step) {
        observer_->OnProgress({"gpu", step.bytes_done, step.bytes_total, total_.seconds(), step.devices});
      };
    }
    gpu_status_ = gpu_->PutOn(root, record.pids, record, gpu_pairs_, progress, keeper);
    gpu_seconds_ = watch.seconds();
    AddSpan("gpu", begin);
  }

  // The device memory comes back before the job runs: a thread that needs it can die without.
  absl::Status WaitForGpuMoment(criu::RestoreOptions* options) {
    if (!result_.manifest.has_gpu() || !gpu::ThreadsAreHeld()) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(const std::string plugin, gpu::PluginPath());
    RK_ASSIGN_OR_RETURN(options->plugins,
                        namespaces_.PluginFolder(plugin, options->work_directory, &options->environment));
    gpu::KeeperListener::Elsewhere criu;
    criu.mounts = namespaces_.enters_mounts();
    if (namespaces_.entered()) {
      criu.number_there = [this](pid_t thread) { return namespaces_.Inside(thread); };
    }
    RK_ASSIGN_OR_RETURN(gpu_listener_,
                        gpu::KeeperListener::Listen(options->work_directory, std::move(criu),
                                                    [this](KeeperMoment, bool, gpu::ThreadKeeper& keeper) {
                                                      PutOnGpu(ready_root_, &keeper);
                                                      if (!gpu_status_->ok()) return *gpu_status_;
                                                      cut_status_ = CutFilesOff();
                                                      return cut_status_;
                                                    }));
    options->environment.push_back(gpu_listener_->variable());
    return absl::OkStatus();
  }

  // In a frozen cgroup CRIU would never answer, nor could it be told to give up.
  absl::Status CheckNotFrozen() const {
    const std::string frozen = FrozenCgroupOf(options_.into);
    if (frozen.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("restoring ", image_->info().digest, ": the container of process ", options_.into,
                     " is paused (its cgroup ", frozen,
                     " is frozen), and nothing comes to life in it; let it go on first (docker unpause, "
                     "systemctl thaw)"));
  }

  // Of two restores of one image at the same time the second would find the job of the first in its place
  // only when its files are rolled back, or when CRIU has begun.
  absl::Status ClaimNumbers(const std::vector<criu::PstreeEntry>& tree) {
    struct stat space = {};
    if (namespaces_.entered() &&
        ::stat(absl::StrCat("/proc/", options_.into, "/ns/pid").c_str(), &space) != 0)
      return ErrnoStatus(errno, absl::StrCat("looking at the PID namespace of process ", options_.into));
    RK_RETURN_IF_ERROR(MakeDirectories(options_.runtime_directory));
    RK_ASSIGN_OR_RETURN(
        claims_, OpenFile(absl::StrCat(options_.runtime_directory, "/", kClaims), O_RDWR | O_CREAT, 0600));
    for (const criu::PstreeEntry& process : tree) {
      if (ClaimNumber(claims_, process.pid, static_cast<uint32_t>(space.st_ino))) continue;
      if (errno != EAGAIN && errno != EACCES)
        return ErrnoStatus(errno, absl::StrCat("claiming process ", process.pid, " for a restore"));
      return absl::FailedPreconditionError(absl::StrCat(
          kIdsInUse, ", and ", process.pid,
          " is being given to a process by another restore that is under way, or that was "
          "interrupted and is just ending: where that is of the same job and goes well, the job comes "
          "back by it; else try again in a moment"));
    }
    return absl::OkStatus();
  }

  void EndPhase(const char* name) {
    result_.phases.emplace_back(name, phase_.seconds());
    AddSpan(name, phase_begin_ns_);
    phase_.Restart();
    phase_begin_ns_ = MonotonicNanos();
  }

  void AddSpan(const char* name, int64_t begin_ns, std::map<std::string, int64_t> numbers = {}) {
    if (!options_.timeline) return;
    result_.timeline.push_back(SpanSince(begin_ns, "rekindle", "restore", name, std::move(numbers)));
  }

  absl::Status PlanGpus() {
    if (!result_.manifest.has_gpu()) {
      if (options_.gpu_map.empty()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("image ", image_->info().reference, " has no GPU state; leave --gpu-map out"));
    }
    if (!gpu_) {
      return absl::UnimplementedError(absl::StrCat("restoring ", image_->info().digest,
                                                   ": it has GPU state, which is not supported here"));
    }
    auto pairs =
        gpu_->PlanRestore(FromProto(result_.manifest.gpu()), options_.gpu_map, options_.ignore_mismatch);
    if (!pairs.ok()) {
      const absl::Status why = Annotate(pairs.status(), absl::StrCat("restoring ", image_->info().digest));
      return absl::IsInvalidArgument(why) ? why : LackOfMachine(why);
    }
    gpu_pairs_ = *std::move(pairs);
    return absl::OkStatus();
  }

  uint64_t GpuBytes() const {
    uint64_t bytes = 0;
    for (const v1::GpuUseOfImage& use : result_.manifest.gpu().uses()) bytes += use.bytes();
    return bytes;
  }

  absl::Status CheckOpened(pid_t root) const {
    if (!user_) return absl::OkStatus();
    OpenedFilesCheck check{result_.manifest, *user_, {}, "/", options_.stdio, criu_began_unix_ns_, {}};
    check.criu_log = absl::StrCat(directory_->path(), "/", criu::RestoreOptions().log_file);
    check.processes = Processes();
    if (OwnMounts(image_->info()) || namespaces_.enters_mounts()) {
      check.root = absl::StrCat("/proc/", root, "/root");
    }
    if (log_.valid()) check.given.push_back(log_.get());
    return Annotate(CheckOpenedFiles(check), absl::StrCat("restoring ", image_->info().digest));
  }

  // Whose cgroups its memory will be in; 0: not known.
  pid_t MemoryCountsFor() const {
    if (options_.into != 0) return options_.into;
    return options_.cgroups == nullptr ? ::getpid() : 0;
  }

  absl::Status CheckNeededFiles(NeededFiles which) {
    const SeenFrom place = namespaces_.entered() ? SeenFrom::kContainer : SeenFrom::kMachine;
    std::vector<std::string> told;
    std::set<std::string> replaced;
    if (!options_.log.empty()) replaced = FilesReplacedByLog(result_.manifest);
    // In mounts of the job's own nobody else puts anything.
    std::set<std::string> removed;
    if (!user_ && !follows_any_links_ && (namespaces_.entered() || !OwnMounts(image_->info()))) {
      RK_ASSIGN_OR_RETURN(removed, NamesOfRemovedFiles(*image_));
    }
    RK_RETURN_IF_ERROR(namespaces_.Within([&] {
      const absl::Status links = follows_any_links_
                                     ? absl::OkStatus()
                                     : CheckLinks(result_.manifest, user_, place, replaced, removed);
      if (!links.ok()) return links;
      return CheckFiles(result_.manifest, user_, &told, place, which, replaced, cut_last_,
                        options_.ignored_paths, options_.edited_files);
    }));
    // Of the others when all are looked at.
    if (which != NeededFiles::kBeyondRollBack)
      result_.warnings.insert(result_.warnings.end(), told.begin(), told.end());
    return absl::OkStatus();
  }

  // Those of the job that have ended, or are about to.
  std::set<pid_t> EndedProcesses() const {
    std::set<pid_t> ended;
    for (const pid_t process : Processes()) {
      const absl::StatusOr<ProcessStat> stat = ReadProcessStat(process);
      if (absl::IsNotFound(stat.status()) || (stat.ok() && stat->ending())) ended.insert(process);
    }
    return ended;
  }

  // The processes of the job that are there.
  std::vector<pid_t> Processes() const {
    std::vector<pid_t> processes;
    for (const criu::PstreeEntry& process : directory_->tree()) {
      processes.push_back(numbers_.Of(process.pid));
    }
    return processes;
  }

  // What the image has; in a container a copy of it in our numbers, which is kept in `*elsewhere`.
  template <typename T>
  const T& InOurs(const T& of_image, T* elsewhere) const {
    if (!namespaces_.entered()) return of_image;
    return *elsewhere = InOurNumbers(of_image, numbers_);
  }

  absl::Status CheckIds(const std::vector<criu::PstreeEntry>& tree) const {
    if (!namespaces_.entered()) return CheckIdsAreFree(tree, options_.cancel_fd);
    return CheckIdsAreFreeIn(namespaces_, tree);
  }

  uint64_t PageBytes() const {
    uint64_t bytes = 0;
    for (const store::ObjectInfo& object : image_->objects()) {
      if (object.paged && !absl::StartsWith(object.name, v1::kFileContentPrefix)) bytes += object.bytes;
    }
    return bytes;
  }

  criu::RestoreOptions CriuOptions() const {
    const v1::JobManifest& manifest = result_.manifest;
    criu::RestoreOptions options;
    options.images_directory = directory_->path();
    options.work_directory = directory_->path();
    options.shell_job = manifest.shell_job();
    options.tcp_close = options_.tcp_close || manifest.tcp_close();
    options.tcp_established = manifest.tcp_established() && !options.tcp_close;
    options.file_locks = manifest.file_locks();
    options.external_unix_sockets = manifest.external_unix_sockets();
    options.user = user_;
    if (follows_any_links_) options.environment.push_back(ANY_LINKS_VARIABLE "=1");
    options.placed_sockets.assign(manifest.placed_sockets().begin(), manifest.placed_sockets().end());
    if (!namespaces_.entered()) options.own_mounts = OwnMounts(image_->info());
    if (options_.timeline) options.log_level = criu::kLogLevelWithStages;
    return options;
  }

  // What the job had as terminal, as pipe or as a file outside its container belongs to whoever started it
  // then; now it gets the caller's descriptors, a log, or /dev/null.
  absl::Status ReplaceStdio(criu::RestoreOptions* options) {
    std::set<std::string> replaced;
    RK_RETURN_IF_ERROR(ReplaceTerminals(options, &replaced));
    for (const v1::StdioSlot& slot : result_.manifest.stdio()) {
      const bool redirect_file = !options_.log.empty() && IsReplacedByLog(slot);
      std::string resource = redirect_file ? ResourceOfFile(slot) : slot.resource();
      if (resource.empty() || !replaced.insert(resource).second) continue;
      RK_ASSIGN_OR_RETURN(int fd, Substitute(slot));
      options->inherit_fd.emplace_back(fd, resource);
    }
    for (const v1::ExternalResource& external : result_.manifest.externals()) {
      if (!replaced.insert(external.resource()).second) continue;
      RK_ASSIGN_OR_RETURN(int fd, NullDevice());
      options->inherit_fd.emplace_back(fd, external.resource());
    }
    return WakeHeldJob(options);
  }

  // A job that had a terminal and gets none: its input and its output come from elsewhere, and go elsewhere.
  absl::Status ReplaceTerminals(criu::RestoreOptions* options, std::set<std::string>* replaced) {
    v1::StdioSlot output;
    output.set_fd(1);
    output.set_kind("tty");
    const v1::StdioSlot* first = result_.manifest.externals_size() > 0 ? &output : nullptr;
    for (const v1::StdioSlot& slot : result_.manifest.stdio()) {
      if (slot.kind() != "tty" || slot.resource().empty()) continue;
      first = &slot;
      break;
    }
    if (first == nullptr) return absl::OkStatus();
    if (options_.log.empty() && options_.stdio.size() == 3 &&
        ::isatty(options_.stdio[static_cast<size_t>(first->fd())]) == 1) {
      return absl::OkStatus();
    }
    RK_RETURN_IF_ERROR(directory_->ReplaceTerminals());
    int from = -1;
    if (options_.stdio.size() == 3) {
      from = options_.stdio[0];
    } else {
      RK_ASSIGN_OR_RETURN(from, EndedInput());
    }
    RK_ASSIGN_OR_RETURN(const int to, Substitute(output));
    options->inherit_fd.emplace_back(from, criu::kInsteadOfTerminalInput);
    options->inherit_fd.emplace_back(to, criu::kInsteadOfTerminalOutput);
    for (const v1::StdioSlot& slot : result_.manifest.stdio()) {
      if (slot.kind() == "tty") replaced->insert(slot.resource());
    }
    for (const v1::ExternalResource& external : result_.manifest.externals()) {
      replaced->insert(external.resource());
    }
    return absl::OkStatus();
  }

  // Unlike /dev/null it can be in an epoll set, where a terminal was.
  absl::StatusOr<int> EndedInput() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
    ended_input_ = UniqueFd(ends[0]);
    ::close(ends[1]);
    return ended_input_.get();
  }

  // One that the runtime hook held when its image was taken finds this in its channel, and goes on.
  absl::Status WakeHeldJob(criu::RestoreOptions* options) {
    if (result_.manifest.control_sockets().empty()) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(auto channel, PacketSocketPair());
    result_.channel = std::move(channel.first);
    job_channel_ = std::move(channel.second);
    for (const std::string& resource : result_.manifest.control_sockets()) {
      options->inherit_fd.emplace_back(job_channel_.get(), resource);
    }
    return SendPacket(result_.channel.get(), R"({"type":"restored"})");
  }

  absl::StatusOr<int> Substitute(const v1::StdioSlot& slot) {
    if (!options_.log.empty() && slot.fd() > 0) {
      if (!log_.valid()) {
        RK_ASSIGN_OR_RETURN(log_, OpenFile(options_.log, O_WRONLY | O_CREAT | O_APPEND, 0600));
      }
      return log_.get();
    }
    if (options_.stdio.size() == 3) return options_.stdio[static_cast<size_t>(slot.fd())];
    if (slot.fd() > 0) {
      result_.warnings.push_back(absl::StrCat("the ", slot.kind(),
                                              " that the job wrote to is gone; its descriptor ", slot.fd(),
                                              " goes to /dev/null (use --log FILE to keep it)"));
    }
    return NullDevice();
  }

  absl::StatusOr<int> NullDevice() {
    if (!null_.valid()) {
      const absl::Status opened = namespaces_.Within([this] {
        absl::StatusOr<UniqueFd> null = OpenFile("/dev/null", O_RDWR);
        if (null.ok()) null_ = *std::move(null);
        return null.status();
      });
      RK_RETURN_IF_ERROR(opened);
    }
    return null_.get();
  }

  absl::Status KeepLogs(const absl::Status& status) {
    if (absl::IsCancelled(status)) return status;
    std::string kept = KeepRestoreLog(options_.runtime_directory, directory_->path(), directory_->name());
    return WithMessage(status, absl::StrReplaceAll(status.message(), {{directory_->path(), kept}}));
  }

  const store::ImageReader* const image_;
  const criu::Installation& criu_;
  gpu::JobMover* const gpu_;
  const RestoreOptions& options_;
  restore::RestoreObserver* const observer_;

  std::unique_ptr<ImageDirectory> directory_;
  criu::JobNamespaces namespaces_;
  OurNumbers numbers_;  // once its tasks are there, where its namespaces are not ours
  std::atomic<uint64_t> bytes_done_{0};
  std::atomic<const char*> phase_name_{"plan"};
  double pages_seconds_ = 0;
  gpu::DevicePairs gpu_pairs_;
  std::unique_ptr<gpu::KeeperListener> gpu_listener_;
  pid_t ready_root_ = 0;
  // What became of its device memory; written by the listener's thread until that has ended.
  std::optional<absl::Status> gpu_status_;
  absl::Status cut_status_;  // so is this, and the next one, where there is device memory
  bool cut_ = false;
  double gpu_seconds_ = 0;
  bool follows_any_links_ = false;  // on the way to the job's files, whoever made them
  std::optional<Owner> user_;       // whose rights bound what files the job gets; nothing: none do
  std::set<std::string> cut_last_;  // paths of files that have grown and will not have
  UniqueFd claims_;                 // on the PIDs of the job, until it has come back
  SocketFolders socket_folders_;
  UniqueFd log_, null_, ended_input_, job_channel_;
  RestoreResult result_;
  Stopwatch total_, phase_;
  int64_t phase_begin_ns_ = MonotonicNanos(), criu_began_unix_ns_ = 0;
};

}  // namespace

absl::StatusOr<RestoreResult> Restore(const store::ImageReader& image, const criu::Installation& criu,
                                      gpu::JobMover* gpu, const RestoreOptions& options,
                                      RestoreObserver* observer) {
  RestoreRun run(image, criu, gpu, options, observer);
  RK_RETURN_IF_ERROR(run.Plan());
  RK_RETURN_IF_ERROR(run.LayOutFiles());
  const bool lacked_folder = run.LacksWorkingDirectory();
  RK_RETURN_IF_ERROR(run.MakeSocketFolders());
  RK_RETURN_IF_ERROR(run.RollBackFiles());
  if (lacked_folder) run.WarnOfWorkingDirectory();
  RK_RETURN_IF_ERROR(run.RunCriu());
  RK_RETURN_IF_ERROR(run.RestoreGpuState());
  return run.TakeResult();
}

absl::StatusOr<v1::JobManifest> ReadJobManifest(const store::ImageReader& image) {
  auto content = image.ReadBlob(v1::kJobManifestObject);
  if (!content.ok()) {
    if (!absl::IsNotFound(content.status())) return content.status();
    return absl::FailedPreconditionError(absl::StrCat(
        "image ", image.info().reference, " holds no job; it was not made by rekindle ckpt or import"));
  }
  v1::JobManifest manifest;
  if (!manifest.ParseFromString(*content)) {
    return absl::DataLossError(
        absl::StrCat("image ", image.info().reference, ": its job manifest can't be read"));
  }
  if (manifest.format() > kNewestManifestFormat) {
    return absl::FailedPreconditionError(absl::StrCat("image ", image.info().reference, " has job format ",
                                                      manifest.format(), ", this Rekindle reads up to ",
                                                      kNewestManifestFormat, "; install a newer one"));
  }
  return manifest;
}

}  // namespace rekindle::restore
