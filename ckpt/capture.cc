#include "ckpt/capture.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/opened_files.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "ckpt/capture_session.h"
#include "ckpt/dirty_pages.h"
#include "ckpt/frozen_dump.h"
#include "ckpt/gpu_move.h"
#include "ckpt/gpu_record.h"
#include "ckpt/job_inspection.h"
#include "ckpt/leases.h"
#include "ckpt/lost_names.h"
#include "ckpt/mounts_check.h"
#include "ckpt/openable_files.h"
#include "ckpt/parent_image.h"
#include "ckpt/read_files.h"
#include "ckpt/socket_folders.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "ckpt/staging_room.h"
#include "ckpt/stand_still.h"
#include "ckpt/standing_job.h"
#include "ckpt/temporary_files.h"
#include "ckpt/thread_placement.h"
#include "ckpt/uninterruptible_waits.h"
#include "ckpt/written_files.h"
#include "criu/image_files.h"
#include "criu/job_namespaces.h"
#include "criu/lost_names.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

constexpr uint32_t kManifestFormat = 1;
constexpr size_t kMostShownCommand = 200;  // bytes, in a label
// A deleted file that the job still holds goes into the image whole, up to this size.
constexpr uint64_t kGhostLimitBytes = 1ull << 30;
// Of the memory that is free, for all of CRIU's images beside the job's memory, such files among them. Until
// they are stored there are up to two copies of them, and half of what is free is for the job's memory.
constexpr uint64_t kPartForFiles = 8;
constexpr uint64_t kFewFileBytes = 64u << 20;  // there is room for
// Room beyond what the job's memory was measured to be: CRIU's own images, and growth until the freeze.
constexpr uint64_t kStagingSlackBytes = 16u << 20;
// For a copy whose pager has put in the last page, until it has let go of the job.
constexpr absl::Duration kMemoryMayTake = absl::Seconds(10);

// Did an image find most of its memory in the one before? To track what is written costs the job a page fault
// for each page that it writes, so a job that writes everything between two images is better off without.
bool MostStays(const store::ImageStats& stats) {
  return stats.parent_bytes * 2 > stats.logical_bytes - stats.zero_bytes;
}

// For threads that nothing can stop just now: before the freeze, while the job runs, and in it.
constexpr absl::Duration kUninterruptibleMayTake = absl::Seconds(10);
constexpr int kStoppingMayTakeSeconds = 5;

// What is done at the gate once somebody else has had his say.
class GateAfter : public CaptureGate {
 public:
  // `also` may be null. The functions are called where it agrees.
  GateAfter(CaptureGate* also, std::function<void()> freezes, std::function<absl::Status()> is_frozen)
      : also_(also), freezes_(std::move(freezes)), is_frozen_(std::move(is_frozen)) {}
  absl::Status BeforeFreeze() override {
    if (also_) {
      const absl::Status status = also_->BeforeFreeze();
      refused_ = !status.ok();
      RK_RETURN_IF_ERROR(status);
    }
    freezes_();
    return absl::OkStatus();
  }
  absl::Status OnFrozen() override {
    if (also_) RK_RETURN_IF_ERROR(also_->OnFrozen());
    return is_frozen_();
  }
  absl::Status BeforeCommit() override { return also_ ? also_->BeforeCommit() : absl::OkStatus(); }

  // The job was not to be frozen.
  bool refused() const { return refused_; }

 private:
  CaptureGate* const also_;
  const std::function<void()> freezes_;
  const std::function<absl::Status()> is_frozen_;
  bool refused_ = false;
};

// The steps of one capture, in the order in which Capture() takes them.
class CaptureRun {
 public:
  CaptureRun(store::Store& store, const criu::Installation& criu, gpu::JobMover* gpu,
             const CaptureOptions& options, CaptureObserver* observer, const std::atomic<bool>* cancel)
      : store_(store), criu_(criu), gpu_(gpu), options_(options), observer_(observer), cancel_(cancel) {}

  // Looks at everything that can be known before the job is touched.
  absl::Status Preflight() {
    Report("preflight");
    RK_RETURN_IF_ERROR(RecoverInterruptedCaptures(options_.runtime_directory, [this](const auto& tree) {
                         if (gpu_ != nullptr) gpu_->WatchOut(tree);
                       }).status());
    RK_ASSIGN_OR_RETURN(machine_, ThisMachine());
    RK_ASSIGN_OR_RETURN(
        job_, InspectJob(options_.pid, options_.caller, options_.caller_pid, options_.caller_groups));
    RK_ASSIGN_OR_RETURN(namespaces_, criu::JobNamespaces::Of(options_.pid));
    namespaces_.LearnKernel(criu_, options_.runtime_directory);
    RK_RETURN_IF_ERROR(CheckCanComeBack());
    if (!namespaces_.entered()) RK_RETURN_IF_ERROR(CheckMounts(options_.pid));
    sees_our_files_ = SeeOurFiles(job_.pids());
    if (namespaces_.entered()) RK_RETURN_IF_ERROR(WaitUntilMemoryIsThere(job_, kMemoryMayTake));
    RK_RETURN_IF_ERROR(FindGpuUsers());
    RK_ASSIGN_OR_RETURN(dump_gate_, FindDumpGate());
    RK_RETURN_IF_ERROR(OpenImage());
    const auto number = [this](pid_t thread) { return namespaces_.Inside(thread); };
    placements_ = LookAtPlacements(job_.pids(), number);
    manners_ = LookAtManners(job_.pids(), number);
    EndPhase("preflight");
    return CheckCancelled();
  }

  // Makes room in RAM, while the job still runs.
  absl::Status Prepare() {
    Report("prepare");
    RK_ASSIGN_OR_RETURN(CaptureSession session, CaptureSession::Begin(options_.runtime_directory, job_));
    session_ = std::make_unique<CaptureSession>(std::move(session));
    RK_RETURN_IF_ERROR(MakeRoom());
    EndPhase("prepare");
    RK_RETURN_IF_ERROR(AwaitInterruptible(options_.pid, kUninterruptibleMayTake, cancel_));
    RK_RETURN_IF_ERROR(CheckFilesCanBeOpenedAgain(job_.pids()));
    // What CRIU names in the freeze is then ours without a look at every process of the machine.
    namespaces_.LearnNumbers();
    return CheckCancelled();
  }

  // From the moment at which it may be frozen to the return of CRIU the job stands still.
  absl::Status Freeze() {
    const auto freezes = [this] {
      stands_still_.emplace();
      may_freeze_ = true;
      if (LooksAtWrittenFiles()) leases_ = Leases::BeginReading();
    };
    // The job stops as soon as CRIU lets it go. What CRIU does itself (--leave-stopped) is for a job that
    // will not go on: it leaves its TCP connections locked.
    const auto is_frozen = [this] {
      return options_.stand_still ? StopTree(job_.processes) : absl::OkStatus();
    };
    GateAfter gate(options_.gate, freezes, is_frozen);
    // Otherwise it is asked when CRIU is ready.
    if (options_.gate == nullptr || !gpu_pids_.empty()) {
      const absl::Status may = gate.BeforeFreeze();
      untouched_ = gate.refused();
      RK_RETURN_IF_ERROR(may);
    }
    std::unique_ptr<GpuMove> gpu = MoveOfGpu();
    if (may_freeze_) Report("freeze");
    criu::DumpOptions dump = DumpOptions();
    dump_arguments_ = criu::DumpArguments(dump);
    uint64_t expected = MemoryBytes();
    auto frozen = RunFrozenDump(
        criu_, dump, namespaces_, arena_.get(), cancel_,
        [this, expected](uint64_t bytes) {
          if (may_freeze_ && !gpu_moves_) Report("freeze", bytes, expected);
        },
        FilesLook(), &gate, /*ask_first=*/!may_freeze_, Tracking(), gpu.get());
    if (gpu) TakeWhatMoved(*gpu);
    untouched_ = gate.refused();
    if (untouched_) return frozen.status();
    dump_failed_ = !frozen.ok();
    if (dump_failed_) return OrEnded(OrUninterruptible(frozen.status()));
    if (!StaysStopped()) stands_still_.reset();
    frozen_ = *std::move(frozen);
    result_.unchanged_bytes = frozen_.unchanged_bytes;
    result_.freeze_seconds = static_cast<double>(frozen_.stats.freezing_us + frozen_.stats.frozen_us) * 1e-6;
    if (gpu) result_.freeze_seconds = gpu->stood_still_seconds();
    result_.command_lines.push_back(frozen_.command_line);
    if (arena_->spilled_bytes() > 0) {
      result_.warnings.push_back(
          absl::StrCat(FormatBytes(arena_->spilled_bytes()),
                       " did not fit the memory budget and went through a file while the job "
                       "stood still; for a shorter freeze ",
                       arena_->how_to_spill_less()));
    }
    if (!gpu || StaysStopped()) EndPhase("freeze");
    RK_RETURN_IF_ERROR(MendLostNames());
    RK_RETURN_IF_ERROR(temporary_.status());
    return ReadFrozenTree();
  }

  // Hash, deduplicate, compress, write, sync, make visible; the job runs meanwhile.
  absl::Status Commit() {
    Report("commit");
    Stopwatch watch;
    v1::JobManifest manifest = Manifest();
    store::ImageInMemory pages;
    RK_RETURN_IF_ERROR(
        AddToImage(frozen_.image, *writer_, &manifest, options_.kept_staging ? &pages : nullptr));
    // The writer has them now; contents of deleted files are as long as these.
    frozen_.image.files.clear();
    RK_RETURN_IF_ERROR(AddWrittenFiles(&manifest));
    AddSocketFolders(&manifest);
    RK_RETURN_IF_ERROR(AddTemporaryFiles(&manifest));
    RK_RETURN_IF_ERROR(writer_->AddBlob(v1::kJobManifestObject, manifest.SerializeAsString()));
    if (options_.gate) RK_RETURN_IF_ERROR(options_.gate->BeforeCommit());
    const auto progress = [this](uint64_t done, uint64_t total) {
      Report("commit", done, total);
      return !Cancelled();
    };
    RK_ASSIGN_OR_RETURN(result_.image, writer_->Commit(progress, [this] { return arena_->CheckSpilled(); }));
    pages.digest = result_.image.digest;
    arena_->HoldsImage(std::move(pages));
    if (tracked_ != 0) options_.dirty_pages->Committed(tracked_, result_.image.digest);
    result_.commit_seconds = watch.seconds();
    EndPhase("commit");
    return absl::OkStatus();
  }

  // The image is safe: with --stop the job ends now.
  void Finish() {
    if (options_.stop) result_.ended = KillTree(job_.processes);
    if (options_.stop && held_) held_->JobEnded();
    if (options_.stand_still) {
      result_.standing = std::make_unique<StandingJob>(job_.processes, std::move(held_), std::move(session_));
    }
    result_.processes = static_cast<uint32_t>(frozen_tree_.size());
    for (const ProcessInfo& process : frozen_tree_) result_.threads += process.threads;
    result_.warnings.insert(result_.warnings.end(), job_.warnings.begin(), job_.warnings.end());
    result_.total_seconds = total_.seconds();
  }

  // After a failure in Freeze or Commit: a job that CRIU has left stopped goes on, and has its connections
  // and its GPU again. `why`, and what became of that.
  absl::Status LetGo(absl::Status why) {
    if (untouched_) return why;
    absl::Status back;
    // Of a CRIU that was killed, or that was to leave the job stopped.
    if (session_ && !DumpOptions().network_lock_skip)
      back = UnlockConnectionsOfTree(session_->run(), job_.processes);
    if (StaysStopped()) {
      back.Update(ResumeTree(job_.processes, [this](const std::vector<pid_t>&) {
                    if (held_) held_->HoldThreads();
                  }).status());
    }
    if (held_) back.Update(held_->Back());
    held_.reset();
    // Last: without its journal nobody would do all this in our place.
    if (dump_failed_) why = KeepLogs(std::move(why));
    if (back.ok()) return why;
    return WithMessage(why, absl::StrCat(why.message(), "; and ", back.message()));
  }

  CaptureResult TakeResult() {
    result_.hook_process = job_.hook_process;
    return std::move(result_);
  }

 private:
  // The processes in the image, with their numbers in it; they need not be those that the inspection saw.
  absl::Status ReadFrozenTree() {
    auto content = frozen_.image.files.find("pstree.img");
    if (content == frozen_.image.files.end())
      return absl::InternalError(
          absl::StrCat("capturing process ", options_.pid, ": CRIU sent no pstree.img"));
    RK_ASSIGN_OR_RETURN(std::vector<criu::PstreeEntry> tree, criu::ParsePstree(content->second));
    std::map<pid_t, const ProcessInfo*> seen;
    for (const ProcessInfo& process : job_.processes) seen[namespaces_.Inside(process.pid)] = &process;
    for (const criu::PstreeEntry& entry : tree) {
      auto it = seen.find(entry.pid);
      ProcessInfo process;
      if (it != seen.end()) {
        process = *it->second;
      } else {
        process.command = CommandLineOf(namespaces_.Outside(entry.pid).value_or(0));
      }
      process.pid = entry.pid;
      process.parent = entry.ppid;
      process.threads = static_cast<uint32_t>(entry.threads.size());
      frozen_tree_.push_back(std::move(process));
    }
    return absl::OkStatus();
  }

  // CRIU would take the whole namespace with it, a container's mounts and all, and could alone bring it back.
  absl::Status CheckCanComeBack() const {
    if (!criu::IsInitOfItsPidNamespace(options_.pid)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "capturing process ", options_.pid,
        ": it is the first of a PID namespace (a container's, of `unshare --pid`), and such a process can't "
        "come back in another one, which has a first process of its own. Give the container an init "
        "(rekindle-init, `docker run --init`; in a pod of Kubernetes `shareProcessNamespace: true`), and the "
        "PID of the job below it"));
  }

  bool Cancelled() const { return cancel_ && cancel_->load(); }
  bool StaysStopped() const { return options_.stop || options_.stand_still; }

  absl::Status CheckCancelled() const {
    if (Cancelled()) return absl::CancelledError("the capture was cancelled; the job runs on");
    return absl::OkStatus();
  }

  void Report(const char* phase, uint64_t done = 0, uint64_t total = 0) {
    if (observer_) observer_->OnProgress({phase, done, total, total_.seconds()});
  }

  void ReportGpu(const gpu::MoveStep& step) {
    if (!observer_) return;
    observer_->OnProgress({"gpu", step.bytes_done, step.bytes_total, total_.seconds(), step.devices});
  }

  void EndPhase(const char* name) {
    result_.phases.emplace_back(name, phase_.seconds());
    phase_.Restart();
  }

  absl::Status FindGpuUsers() {
    if (gpu_) {
      RK_ASSIGN_OR_RETURN(gpu_pids_, gpu_->Users(job_.pids()));
      for (const pid_t pid : gpu_pids_) gpu_numbers_[pid] = namespaces_.Inside(pid);
      if (!gpu_pids_.empty()) {
        // Where the driver does not tell, the arena grows.
        gpu_bytes_ = gpu_->EstimateBytes(gpu_pids_);
      }
    }
    for (pid_t pid : job_.device_users) {
      if (std::find(gpu_pids_.begin(), gpu_pids_.end(), pid) != gpu_pids_.end()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", options_.pid, ": process ", pid,
          " has an NVIDIA device open and no CUDA state that the driver could save (it may only watch the "
          "GPU, through NVML or nvidia-smi, or have inherited the descriptor); close it before the "
          "checkpoint"));
    }
    return absl::OkStatus();
  }

  WrittenFilesOptions FilesOptions() const {
    WrittenFilesOptions options;
    options.contents = options_.file_contents;
    options.ignore_paths = options_.ignore_paths;
    if (options_.temporary_files)
      options.ignore_paths.insert(options.ignore_paths.end(), {"/tmp", "/var/tmp"});
    if (!sees_our_files_) options.sandbox_root = JobsRoot();
    return options;
  }

  // `tree`: CRIU's pstree.img, which knows of processes that the inspection did not see.
  std::vector<pid_t> FrozenProcesses(absl::string_view tree) const {
    std::vector<pid_t> pids = job_.pids();
    absl::StatusOr<std::vector<criu::PstreeEntry>> entries = criu::ParsePstree(tree);
    if (entries.ok()) {
      for (const criu::PstreeEntry& entry : *entries) {
        if (auto pid = namespaces_.Outside(entry.pid); pid.ok()) pids.push_back(*pid);
      }
    }
    // Most are in both, and each is looked at while the job stands still.
    std::sort(pids.begin(), pids.end());
    pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
    return pids;
  }

  ReadableFiles FilesTheOwnerMayHave(std::vector<pid_t> pids) const {
    if (options_.caller == 0) return {};
    return ReadableFiles(job_.processes[0].uid, std::move(pids));
  }

  // What of it can't be looked at, a restore asks the job's rights for.
  void NoteOpenedFiles(const std::vector<pid_t>& pids) {
    if (job_.processes[0].uid == 0) return;
    for (const pid_t pid : pids) {
      const auto files = FilesOpenedBy(pid, OpenedFilesOf::kDescriptorsAndFolders);
      if (!files.ok()) continue;
      for (const OpenedFile& file : *files) {
        if (file.identity.born_ns != 0) opened_[file.identity] |= file.access;
      }
    }
  }

  // Files that the job writes are recorded at the end of the freeze, although that costs some of it (0.1 ms
  // for a small job, 0.7 ms of 210 ms for one with torch, most of it for reading CRIU's images): these tell
  // which files they are, how long, and where the job stands in them, but not which inode and content a name
  // has, and once the job runs that may be another.
  FrozenLook FilesLook() {
    const absl::Status too_late = absl::UnavailableError("CRIU's images were not complete in time");
    if (LooksAtWrittenFiles()) written_ = too_late;
    if (options_.temporary_files) temporary_ = too_late;
    FrozenLook look;
    look.most_file_bytes = most_file_bytes_;
    look.takes_nameless_memory = LooksAtWrittenFiles();
    look.at = [this](const std::map<std::string, std::string>& files) {
      LookAtFrozen(files);
      if (options_.temporary_files) temporary_ = TakeTemporary();
    };
    return look;
  }

  void LookAtFrozen(const std::map<std::string, std::string>& files) {
    const auto tree = files.find("pstree.img");
    std::vector<pid_t> pids = FrozenProcesses(tree == files.end() ? "" : tree->second);
    // It may have become another's, or begun one that is, since it was inspected.
    may_have_it_ = CheckMayHaveImageOf(pids, options_.caller, options_.caller_groups);
    NoteOpenedFiles(pids);
    ReadableFiles readable = FilesTheOwnerMayHave(std::move(pids));
    lost_names_ = LookAtLostNames(files, session_->run(), JobsRoot(), NameOfJob(),
                                  std::min(kGhostLimitBytes, most_file_bytes_), &readable);
    if (sees_our_files_) read_files_ = ReadFiles::Open(files, &readable);
    socket_folders_ = LookAtSocketFolders(files, sees_our_files_ ? "/" : JobsRoot(), job_.processes[0].uid);
    if (!LooksAtWrittenFiles()) {
      if (socket_folders_.ok()) socket_folders_->folders.clear();
      return;
    }
    WrittenFilesOptions options = FilesOptions();
    options.readable = std::move(readable);
    options.leases = leases_;
    if (!lost_names_.ok() || lost_names_->by_link.empty()) {
      written_ = LookAtWrittenFiles(files, options, arena_.get());
      return;
    }
    std::map<std::string, std::string> named;
    for (const auto& [name, content] : files) {
      if (!criu::HasContent(name)) named.emplace(name, content);
    }
    const absl::Status status = PutIntoImages(lost_names_->WithoutContents(), &named);
    options.nameless = lost_names_->nameless;
    written_ = status.ok() ? LookAtWrittenFiles(named, options, arena_.get()) : status;
  }

  absl::StatusOr<TakenTemporaryFiles> TakeTemporary() const {
    // Names of CRIU's for the time of the dump, and memory that the image has. A job's own /var/tmp is its
    // /tmp.
    std::set<std::string> without;
    if (lost_names_.ok()) {
      for (const std::string& path : lost_names_->on_disk)
        without.insert(absl::StartsWith(path, "/var/tmp/") ? path.substr(sizeof "/var" - 1) : path);
    }
    if (written_.ok()) {
      for (const v1::WrittenFile& file : written_->files) {
        if (file.shared_memory()) without.insert(file.path());
      }
    }
    return TakeTemporaryFiles(JobsRoot(), without, *options_.temporary_files);
  }

  absl::Status AddTemporaryFiles(v1::JobManifest* manifest) {
    if (!options_.temporary_files) return absl::OkStatus();
    *manifest->mutable_temporary() = std::move(temporary_->record);
    return temporary_->contents.empty() ? absl::OkStatus()
                                        : writer_->AddBlob(v1::kTemporaryContents, temporary_->contents);
  }

  // Of a job with all its namespaces CRIU has the memory file systems, too.
  bool LooksAtWrittenFiles() const { return sees_our_files_ || namespaces_.entered(); }

  std::string NameOfJob() const {
    return absl::StrCat(job_.processes[0].pid, ".", job_.processes[0].start_ticks);
  }

  std::string JobsRoot() const { return absl::StrCat("/proc/", options_.pid, "/root"); }

  // It is nowhere else.
  absl::Status CheckNamelessMemory() const {
    if (lost_names_->nameless.empty()) return absl::OkStatus();
    RK_RETURN_IF_ERROR(Annotate(written_.status(), "reading the job's shared memory"));
    size_t found = 0;
    for (size_t i = 0; i < written_->files.size(); ++i) {
      const v1::WrittenFile& file = written_->files[i];
      if (!file.nameless()) continue;
      ++found;
      if (written_->contents.contains(i)) continue;
      return absl::ResourceExhaustedError(
          absl::StrCat("the job's shared memory without a name (", FormatBytes(file.size()),
                       ") could not be read: ", absl::StrJoin(written_->warnings, "; ")));
    }
    if (found == lost_names_->nameless.size()) return absl::OkStatus();
    return absl::InternalError("shared memory of the job that has no name could not be looked at");
  }

  absl::Status MendLostNames() {
    RK_RETURN_IF_ERROR(lost_names_.status());
    if (options_.caller != 0) RK_RETURN_IF_ERROR(may_have_it_);
    if (options_.stop) RemoveExtraNames(*lost_names_, JobsRoot());
    result_.warnings.insert(result_.warnings.end(), lost_names_->warnings.begin(),
                            lost_names_->warnings.end());
    RK_RETURN_IF_ERROR(CheckNamelessMemory());
    return PutIntoImages(*std::exchange(lost_names_, LostNames()), &frozen_.image.files);
  }

  void AddSocketFolders(v1::JobManifest* manifest) {
    if (!socket_folders_.ok()) {
      result_.warnings.push_back(absl::StrCat(
          "folders in which the job has Unix sockets are not recorded, so that they must be there when it is "
          "restored: ",
          socket_folders_.status().message()));
      return;
    }
    result_.warnings.insert(result_.warnings.end(), socket_folders_->warnings.begin(),
                            socket_folders_->warnings.end());
    for (v1::SocketFolder& folder : socket_folders_->folders)
      *manifest->add_socket_folders() = std::move(folder);
    for (std::string& socket : socket_folders_->placed) manifest->add_placed_sockets(std::move(socket));
  }

  // What the kernel's marks allow to leave out. Where a device writes memory they say nothing.
  FrozenTracking Tracking() {
    FrozenTracking tracking;
    if (options_.dirty_pages == nullptr || !gpu_pids_.empty()) return tracking;
    tracking.unchanged = [this](pid_t task, pid_t pid, const AddressRange& range) {
      std::vector<AddressRange> clean =
          options_.dirty_pages->CleanRanges(pid, writer_->parent_digest(), range);
      std::erase_if(clean, [&](const AddressRange& r) {
        return !writer_->ParentHas(TaskMemoryObject(task), r.start, (r.end - r.start) / store::kPageSize);
      });
      return clean;
    };
    if (worth_tracking_ && !StaysStopped()) {
      tracking.copied = [this](const TaskRanges& memory) { tracked_ = options_.dirty_pages->Arm(memory); };
    }
    return tracking;
  }

  absl::Status AddWrittenFiles(v1::JobManifest* manifest) {
    if (!written_.ok()) {
      result_.warnings.push_back(
          absl::StrCat("files that the job writes are not recorded, so that a restore can't roll them back: ",
                       written_.status().message()));
      return absl::OkStatus();
    }
    if (options_.file_contents && !LooksAtWrittenFiles()) {
      result_.warnings.push_back(
          "the job has all its namespaces for itself: its files are not recorded, and a restore does not "
          "roll "
          "them back");
    }
    result_.warnings.insert(result_.warnings.end(), written_->warnings.begin(), written_->warnings.end());
    return AddToImage(*written_, *writer_, manifest);
  }

  // Of a process that uses a GPU; some may have ended by now.
  pid_t NumberInImage(pid_t pid) const {
    const auto known = gpu_numbers_.find(pid);
    return known == gpu_numbers_.end() ? namespaces_.Inside(pid) : known->second;
  }

  uint64_t MemoryBytes() const { return job_.private_bytes() + gpu_bytes_; }

  // Device memory becomes host memory of the job while it stands still, and goes back at once, before
  // anything is hashed or written. That of a tree that is to end, or stay stopped, stays there: the driver
  // needs a running one.
  std::unique_ptr<GpuMove> MoveOfGpu() {
    if (gpu_pids_.empty()) return nullptr;
    Report("gpu", 0, gpu_bytes_);
    GpuMove::Options move;
    move.job = options_.pid;
    move.pids = gpu_pids_;
    move.lock_timeout = options_.gpu_lock_timeout;
    move.stays_out = StaysStopped();
    move.left_behind = [this] { return OnNvidiaDevices(gpu_pids_); };
    move.progress = [this](const gpu::MoveStep& step) { ReportGpu(step); };
    gpu_moves_ = true;
    move.ended = [this](const char* phase) {
      EndPhase(phase);
      gpu_moves_ = absl::string_view(phase) != "gpu to host";
    };
    return std::make_unique<GpuMove>(*gpu_, namespaces_, std::move(move));
  }

  void TakeWhatMoved(GpuMove& move) {
    gpu_moves_ = false;
    held_ = move.Take();
    gpu_record_ = move.record();
    left_on_devices_ = move.left_behind();
    result_.gpu_bytes = move.device_bytes();
    // The image is good whatever becomes of this, and all the more needed.
    if (!move.back().ok()) result_.warnings.emplace_back(move.back().message());
  }

  absl::Status OpenImage() {
    store::NewImageOptions image;
    image.reference = options_.reference;
    image.owner = options_.owner;
    image.replace = options_.replace;
    image.replace_others = options_.replace_others;
    image.labels = options_.labels;
    image.prepared_id = options_.prepared_id;
    image.sparing = options_.sparing;
    job_id_ = JobId(machine_.boot_id, job_.processes[0]);
    image.labels[v1::kJobIdLabel] = job_id_;
    image.labels[v1::kCommandLabel] = ToUtf8(job_.processes[0].command, kMostShownCommand);
    if (!options_.job_name.empty()) image.labels[v1::kJobNameLabel] = options_.job_name;
    image.labels.erase(v1::kConnectionLockLabel);
    if (options_.stop && !options_.stand_still && HoldsBackPackets())
      image.labels[v1::kConnectionLockLabel] = "yes";
    image.parent = options_.parent;
    const bool is_said = !options_.parent.empty() || options_.no_parent;
    RK_ASSIGN_OR_RETURN(
        writer_, is_said ? store_.NewImage(image) : BeginWithBestParent(store_, image, &result_.warnings));
    if (options_.dirty_pages && !writer_->parent_digest().empty()) {
      absl::StatusOr<store::ImageInfo> parent = store_.Find(writer_->parent_digest());
      worth_tracking_ = parent.ok() && MostStays(parent->stats);
    }
    return absl::OkStatus();
  }

  absl::Status MakeRoom() {
    const uint64_t contents = LooksAtWrittenFiles() ? EstimateContents(job_.pids(), FilesOptions()) : 0;
    StagingRoom::Wanted wanted;
    wanted.bytes = MemoryBytes() + contents + kStagingSlackBytes;
    wanted.budget_bytes = options_.staging_budget_bytes;
    wanted.beside_bytes = gpu_bytes_;  // what comes off its GPUs
    RK_ASSIGN_OR_RETURN(const StagingRoom room, StagingRoom::Take(wanted, cancel_));
    most_file_bytes_ = std::max(room.available_bytes() / kPartForFiles, kFewFileBytes);
    RK_ASSIGN_OR_RETURN(arena_, StagingArena::Create(wanted.bytes, room.budget_bytes(),
                                                     options_.spill_directory, options_.kept_staging));
    return absl::OkStatus();
  }

  // That takes a firewall's table, which lengthens the freeze. Without it a connection that was made since
  // the job was looked at may come back to a peer that has gone on, which resets it.
  bool HoldsBackPackets() const {
    return !options_.tcp_close && (job_.tcp_connections != 0 || options_.tcp_established);
  }

  criu::DumpOptions DumpOptions() const {
    criu::DumpOptions dump;
    dump.pid = namespaces_.Inside(options_.pid);
    dump.images_directory = session_->work_directory();
    dump.work_directory = session_->work_directory();
    dump.after = options_.stop ? criu::AfterDump::kLeaveStopped : criu::AfterDump::kLeaveRunning;
    dump.shell_job = job_.session_outside;
    dump.tcp_close = options_.tcp_close;
    // Connections are carried unless told otherwise: at worst the peer has gone when the job comes back,
    // which the job sees as a connection reset. That none was seen says nothing of the moment of the freeze.
    dump.tcp_established = !options_.tcp_close;
    // A client that connects just now finds its connection reset when the job comes back, and tries again. Of
    // connections within the job an end could wait for ever; so if one is being made, CRIU fails.
    dump.skip_in_flight = job_.listens_on_tcp && !job_.connected_to_itself;
    dump.file_locks = true;
    dump.external_unix_sockets = true;
    dump.ghost_limit_bytes = kGhostLimitBytes;
    dump.network_lock_skip = !HoldsBackPackets();
    dump.timeout_seconds = kStoppingMayTakeSeconds;
    dump.external = job_.external_ttys;
    for (const StdioDescriptor& slot : job_.stdio) {
      if (slot.outside) dump.external.push_back(slot.resource);
    }
    dump.action_script = dump_gate_;
    dump.run = session_->run();
    return dump;
  }

  v1::JobManifest Manifest() const {
    const ProcessInfo& root = job_.processes[0];
    v1::JobManifest manifest;
    manifest.set_format(kManifestFormat);
    manifest.set_root_pid(frozen_tree_[0].pid);
    manifest.set_uid(root.uid);
    manifest.set_command(ToUtf8(root.command));
    manifest.set_working_directory(job_.working_directory);
    manifest.set_job_name(options_.job_name);
    manifest.set_job_id(job_id_);
    manifest.set_criu_version(criu_.version.ToString());
    manifest.set_kernel(machine_.kernel);
    manifest.set_machine(machine_.architecture);
    for (const std::string& feature : machine_.cpu_features) manifest.add_cpu_features(feature);
    for (const ProcessInfo& process : frozen_tree_) {
      v1::JobProcess* entry = manifest.add_processes();
      entry->set_pid(process.pid);
      entry->set_parent_pid(process.parent);
      entry->set_command(ToUtf8(process.command));
      entry->set_threads(process.threads);
    }
    for (const v1::ThreadPlacement& placement : placements_) *manifest.add_placements() = placement;
    for (const v1::ThreadManners& manners : manners_) *manifest.add_manners() = manners;
    for (const std::string& argument : dump_arguments_) manifest.add_dump_arguments(argument);
    for (const StdioDescriptor& slot : job_.stdio) {
      v1::StdioSlot* entry = manifest.add_stdio();
      entry->set_fd(slot.fd);
      entry->set_kind(slot.kind);
      entry->set_resource(slot.resource);
      entry->set_path(slot.path);
      entry->set_writable(slot.writable);
    }
    for (const std::string& tty : job_.external_ttys) {
      v1::ExternalResource* external = manifest.add_externals();
      external->set_resource(tty);
      external->set_why("a terminal whose other side is outside the job");
    }
    for (const std::string& socket : job_.control_sockets) manifest.add_control_sockets(socket);
    criu::DumpOptions dump = DumpOptions();
    manifest.set_shell_job(dump.shell_job);
    manifest.set_tcp_established(dump.tcp_established);
    manifest.set_tcp_close(dump.tcp_close);
    manifest.set_file_locks(dump.file_locks);
    manifest.set_external_unix_sockets(dump.external_unix_sockets);
    manifest.set_freeze_seconds(result_.freeze_seconds);
    manifest.set_captured_unix_ns(UnixNanos());
    manifest.set_log(options_.log);
    if (!gpu_pids_.empty()) {
      gpu::GpuRecord record = gpu_record_;
      for (pid_t& pid : record.pids) pid = NumberInImage(pid);
      for (gpu::GpuUse& use : record.uses) use.pid = NumberInImage(use.pid);
      *manifest.mutable_gpu() = ToProto(record);
    }
    RecordNeededFiles(frozen_.image, &manifest);
    read_files_.AddTo(&manifest);
    for (const auto& [file, access] : opened_) {
      v1::OpenedInode* opened = manifest.add_opened();
      opened->set_device(file.device);
      opened->set_inode(file.inode);
      opened->set_born_ns(file.born_ns);
      opened->set_access(static_cast<uint32_t>(access));
    }
    return manifest;
  }

  // CRIU has many words for a process that is not there any more.
  absl::Status OrEnded(absl::Status status) const {
    const ProcessInfo& root = job_.processes[0];
    const absl::StatusOr<ProcessStat> now = ReadProcessStat(root.pid);
    const bool there = now.ok() && now->start_ticks == root.start_ticks && !now->ending();
    // Of a job that has lost data it is told why it ended.
    if (there || absl::IsCancelled(status) || absl::IsDataLoss(status) || absl::IsInternal(now.status()))
      return status;
    return absl::NotFoundError(absl::StrCat("capturing process ", root.pid, " (", root.command.substr(0, 60),
                                            "): it ended while it was being captured; there is no image"));
  }

  // CRIU could not stop all threads in time.
  absl::Status OrUninterruptible(const absl::Status& status) const {
    if (!absl::IsDeadlineExceeded(status)) return status;
    const std::string wait = DescribeUninterruptibleWait(options_.pid);
    return wait.empty() ? status : WithMessage(status, absl::StrCat(status.message(), "\nNow, ", wait, "."));
  }

  absl::Status KeepLogs(absl::Status status) {
    if (absl::IsCancelled(status)) return status;
    if (!left_on_devices_.empty()) {
      status =
          Annotate(status, absl::StrCat("the NVIDIA driver has moved the job's device memory to the host, "
                                        "and left behind: ",
                                        left_on_devices_));
    }
    std::string work = session_->work_directory();
    std::string kept = session_->KeepLogs();
    return WithMessage(status, absl::StrReplaceAll(status.message(), {{work, kept}}));
  }

  store::Store& store_;
  const criu::Installation& criu_;
  gpu::JobMover* const gpu_;
  const CaptureOptions& options_;
  CaptureObserver* const observer_;
  const std::atomic<bool>* const cancel_;

  Machine machine_;
  JobInspection job_;
  criu::JobNamespaces namespaces_;
  bool sees_our_files_ = false;
  std::vector<v1::ThreadPlacement> placements_;
  std::vector<v1::ThreadManners> manners_;
  absl::StatusOr<LostNames> lost_names_ = LostNames();
  absl::Status may_have_it_ = absl::UnavailableError("the job was not looked at while it stood still");
  ReadFiles read_files_;
  absl::StatusOr<SocketFolders> socket_folders_ = SocketFolders();
  std::map<InodeIdentity, int> opened_;                    // with R_OK, W_OK, X_OK
  absl::StatusOr<WrittenFiles> written_ = WrittenFiles();  // the contents lie in the arena
  std::shared_ptr<Leases> leases_;
  absl::StatusOr<TakenTemporaryFiles> temporary_ = TakenTemporaryFiles();
  std::string job_id_, dump_gate_;
  std::vector<pid_t> gpu_pids_;
  std::map<pid_t, pid_t> gpu_numbers_;  // of these, to those in the image
  uint64_t gpu_bytes_ = 0;
  uint64_t most_file_bytes_ = 0;
  std::unique_ptr<gpu::HeldJob> held_;   // where its memory stays out
  std::atomic<bool> gpu_moves_ = false;  // just now
  gpu::GpuRecord gpu_record_;
  std::string left_on_devices_;  // by the driver, where the dump failed
  std::vector<std::string> dump_arguments_;
  bool dump_failed_ = false;
  std::atomic<bool> may_freeze_ = false;
  bool untouched_ = false;  // it was not to be frozen
  bool worth_tracking_ = false;
  uint64_t tracked_ = 0;                    // by dirty_pages, from the end of this freeze on; 0: not
  std::optional<StandStill> stands_still_;  // what fails, or stays stopped, until it has been let go
  std::unique_ptr<StagingArena> arena_;
  FrozenDump frozen_;
  std::vector<ProcessInfo> frozen_tree_;  // root first
  std::unique_ptr<CaptureSession> session_;
  std::unique_ptr<store::ImageWriter> writer_;  // goes before the arena, whose memory it reads
  CaptureResult result_;
  Stopwatch total_, phase_;
};

}  // namespace

absl::StatusOr<CaptureResult> Capture(store::Store& store, const criu::Installation& criu, gpu::JobMover* gpu,
                                      const CaptureOptions& options, CaptureObserver* observer,
                                      const std::atomic<bool>* cancel) {
  CaptureRun run(store, criu, gpu, options, observer, cancel);
  RK_RETURN_IF_ERROR(run.Preflight());
  RK_RETURN_IF_ERROR(run.Prepare());
  const absl::Status status = CatchNoMoreThreads([&]() -> absl::Status {
    RK_RETURN_IF_ERROR(run.Freeze());
    return run.Commit();
  });
  if (!status.ok()) return run.LetGo(status);
  run.Finish();
  return run.TakeResult();
}

}  // namespace rekindle::ckpt
