#include "ckpt/capture.h"

#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/capability.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timeline.h"
#include "base/trace_rights.h"
#include "base/utf8.h"
#include "ckpt/capture_session.h"
#include "ckpt/dirty_pages.h"
#include "ckpt/frozen_dump.h"
#include "ckpt/frozen_files.h"
#include "ckpt/gpu_move.h"
#include "ckpt/gpu_record.h"
#include "ckpt/job_inspection.h"
#include "ckpt/mounts_check.h"
#include "ckpt/namespaces_check.h"
#include "ckpt/openable_files.h"
#include "ckpt/outside_peers.h"
#include "ckpt/parent_image.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "ckpt/staging_room.h"
#include "ckpt/stand_still.h"
#include "ckpt/standing_job.h"
#include "ckpt/thread_placement.h"
#include "ckpt/undone_semaphores.h"
#include "ckpt/uninterruptible_waits.h"
#include "ckpt/upper_protocols.h"
#include "ckpt/urgent_data.h"
#include "criu/failure.h"
#include "criu/image_files.h"
#include "criu/job_namespaces.h"
#include "gpu_state/cuda_processes.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

constexpr uint32_t kManifestFormat = 1;
constexpr size_t kMostShownCommand = 200;  // bytes, in a label
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
  // `also` may be null. The functions are called where it agrees, but for `stands_still`, which comes first.
  GateAfter(CaptureGate* also, std::function<void()> freezes, std::function<void()> stands_still,
            std::function<absl::Status()> is_frozen)
      : also_(also),
        freezes_(std::move(freezes)),
        stands_still_(std::move(stands_still)),
        is_frozen_(std::move(is_frozen)) {}
  absl::Status BeforeFreeze() override {
    if (also_) {
      const absl::Status status = also_->BeforeFreeze();
      refused_ = !status.ok();
      RK_RETURN_IF_ERROR(status);
    }
    freezes_();
    return absl::OkStatus();
  }
  void StandsStill() override {
    stands_still_();
    if (also_) also_->StandsStill();
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
  const std::function<void()> freezes_, stands_still_;
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
    tls_before_ = TlsSessionsBegunBeside(options_.pid);
    RK_ASSIGN_OR_RETURN(
        job_, InspectJob(options_.pid, options_.caller, options_.caller_pid, options_.caller_groups));
    RK_RETURN_IF_ERROR(CheckNamespaces(job_.pids()));
    RK_ASSIGN_OR_RETURN(namespaces_, criu::JobNamespaces::Of(options_.pid));
    if (namespaces_.enters_mounts() && !HasCapability(CAP_SYS_ADMIN)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", options_.pid,
          ": it has a mount namespace of its own, for which Rekindle needs CAP_SYS_ADMIN: run it "
          "with that"));
    }
    namespaces_.LearnKernel(criu_, options_.runtime_directory);
    RK_RETURN_IF_ERROR(CheckCanComeBack());
    if (criu::HasOurPids(options_.pid)) {
      RK_RETURN_IF_ERROR(CheckMounts(job_.pids(), namespaces_, &result_.warnings));
      namespaces_.MountsAreTheMachines();
      own_mounts_ = OwnMountsOf(options_.pid);
    }
    files_.emplace(options_, job_, namespaces_, own_mounts_);
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
    files_->LookAhead();
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
      files_->FreezeBegins();
    };
    const auto note_moment = [this] { result_.frozen_ns = MonotonicNanos(); };
    // The job stops as soon as CRIU lets it go. What CRIU does itself (--leave-stopped) is for a job that
    // will not go on: it leaves its TCP connections locked.
    const auto is_frozen = [&]() -> absl::Status {
      if (result_.frozen_ns == 0) note_moment();
      RK_RETURN_IF_ERROR(CheckNoTlsSince(job_.pids(), tls_before_));
      // What connections have goes with them where they are closed.
      const bool keeps_tcp = !options_.tcp_close && (job_.tcp_connections != 0 || job_.listens_on_tcp);
      const bool sees_semaphores = SeesSemaphores(options_.pid);
      if (keeps_tcp || sees_semaphores) {
        // The tree is what it is now: it may have grown since it was looked at.
        const std::vector<pid_t> pids = ProcessTree(options_.pid);
        if (keeps_tcp) RK_RETURN_IF_ERROR(CheckNoUnreadUrgentData(pids));
        if (sees_semaphores) RK_RETURN_IF_ERROR(CheckNoHeldSemaphore(pids, &result_.warnings));
      }
      return options_.stand_still ? StopTree(job_.processes) : absl::OkStatus();
    };
    GateAfter gate(options_.gate, freezes, note_moment, is_frozen);
    // Otherwise it is asked when CRIU is ready.
    if (options_.gate == nullptr || !gpu_pids_.empty()) {
      const absl::Status may = gate.BeforeFreeze();
      untouched_ = gate.refused();
      RK_RETURN_IF_ERROR(may);
    }
    std::unique_ptr<GpuMove> gpu = MoveOfGpu();
    if (may_freeze_) Report("freeze");
    criu::DumpOptions dump = DumpOptions();
    uint64_t expected = MemoryBytes();
    auto frozen = RunFrozenDump(
        criu_, dump, namespaces_, arena_.get(), cancel_,
        [this, expected](uint64_t bytes) {
          if (may_freeze_ && !gpu_moves_) Report("freeze", bytes, expected);
        },
        files_->Look(session_->run(), available_bytes_, arena_.get()), &gate, /*ask_first=*/!may_freeze_,
        Tracking(), gpu.get());
    if (gpu) TakeWhatMoved(*gpu);
    untouched_ = gate.refused();
    if (untouched_) return frozen.status();
    dump_failed_ = !frozen.ok();
    if (dump_failed_) return OrEnded(WithOutsidePeers(OrUninterruptible(frozen.status())));
    if (!StaysStopped()) stands_still_.reset();
    if (result_.frozen_ns == 0) note_moment();  // a CRIU that does not ask
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
    RK_RETURN_IF_ERROR(files_->PutIntoImages(&frozen_.image.files, &result_.warnings));
    RK_RETURN_IF_ERROR(CheckNamespacesInImage(options_.pid, frozen_.image.files));
    RK_RETURN_IF_ERROR(CheckNoFileOfThreads(options_.pid, frozen_.image.files));
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
    RK_RETURN_IF_ERROR(files_->AddToImage(*writer_, &manifest, &result_.warnings));
    const std::string manifest_text = manifest.SerializeAsString();
    // Before the job may be stopped: text that is no UTF-8 can be written, but not read.
    if (!v1::JobManifest().ParseFromString(manifest_text)) {
      return absl::InternalError(
          "the image's job manifest could not be read again, so none is kept; the job "
          "goes on. This is a mistake in Rekindle: please report it");
    }
    RK_RETURN_IF_ERROR(writer_->AddBlob(v1::kJobManifestObject, manifest_text));
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
    return BothFailures(why, back);
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
    if (!criu::IsInitOfItsPidNamespace(options_.pid)) return CheckProc();
    return absl::FailedPreconditionError(absl::StrCat(
        "capturing process ", options_.pid,
        ": it is the first of a PID namespace (a container's, of `unshare --pid`), and such a process can't "
        "come back in another one, which has a first process of its own. Give the container an init "
        "(rekindle-init, `docker run --init`; in a pod of Kubernetes `shareProcessNamespace: true`), and the "
        "PID of the job below it"));
  }

  absl::Status CheckProc() const {
    if (namespaces_.HasItselfInProc()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "capturing process ", options_.pid,
        ": it has a PID namespace of its own, and its /proc is that of another, or there is none, so that "
        "CRIU would not find the job there; have one mounted when you start it (`unshare --pid --fork "
        "--mount-proc`, `bwrap --unshare-pid --proc /proc`)"));
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
      if (const absl::Status found = gpu_ ? gpu_->Info().status() : absl::OkStatus();
          absl::IsNotFound(found)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "capturing process ", options_.pid, ": process ", pid,
            " has an NVIDIA device open, and Rekindle can't ask the driver whether it has state there: ",
            found.message(), ". Install the driver's libcuda.so.1 beside Rekindle; where that runs in a ",
            "container, have the NVIDIA container toolkit put it there (docs/containers.md)"));
      }
      if (const pid_t parent = GpuUserAbove(pid); parent != 0) {
        return absl::FailedPreconditionError(absl::StrCat(
            "capturing process ", options_.pid, ": process ", pid, " was forked by process ", parent,
            " after that had begun to use CUDA, and still has its NVIDIA devices open, which the driver does "
            "not save for it: have such children (as those that load data) start by spawn in place of fork "
            "(PyTorch: DataLoader(…, multiprocessing_context='spawn')), or before the first CUDA call; or, "
            "with driver 590 and newer, start the job with `cuda-checkpoint --launch-job`"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "capturing process ", options_.pid, ": process ", pid,
          " has an NVIDIA device open and no CUDA state that the driver could save (it may only watch the "
          "GPU, through NVML or nvidia-smi, or have inherited the descriptor); close it before the "
          "checkpoint"));
    }
    return absl::OkStatus();
  }

  // The one that it was forked by, without running a program of its own since. 0: nobody.
  pid_t GpuUserAbove(pid_t pid) const {
    const absl::StatusOr<std::string> program = ProgramOf(pid);
    if (!program.ok() || !gpu::MapsCuda(pid)) return 0;
    for (size_t above = 0; above < job_.processes.size(); ++above) {
      const auto stat = ReadProcessStat(pid);
      if (!stat.ok()) break;
      pid = stat->parent;
      if (ProgramOf(pid).value_or("") != *program) break;
      if (std::find(gpu_pids_.begin(), gpu_pids_.end(), pid) != gpu_pids_.end()) return pid;
    }
    return 0;
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
    image.labels.erase(v1::kOwnMountsLabel);
    if (!own_mounts_.empty()) image.labels[v1::kOwnMountsLabel] = own_mounts_;
    image.labels.erase(v1::kConnectionLockLabel);
    if (options_.stop && !options_.stand_still && HoldsBackPackets())
      image.labels[v1::kConnectionLockLabel] = "yes";
    image.parent = options_.parent;
    const bool is_said = !options_.parent.empty() || options_.no_parent;
    RK_ASSIGN_OR_RETURN(
        writer_, is_said ? store_.NewImage(image) : BeginWithBestParent(store_, image, &result_.warnings));
    if (!writer_->parent_digest().empty()) LearnFilesOf(writer_->parent_digest());
    if (options_.dirty_pages && !writer_->parent_digest().empty()) {
      absl::StatusOr<store::ImageInfo> parent = store_.Find(writer_->parent_digest());
      worth_tracking_ = parent.ok() && MostStays(parent->stats);
    }
    return absl::OkStatus();
  }

  // If it is of this job, which has its numbers again when it is brought back. Without that its files count
  // as those of a job that has no image yet.
  void LearnFilesOf(const std::string& image) {
    const auto reader = store_.OpenImage(image);
    if (!reader.ok()) return;
    const auto text = (*reader)->ReadBlob(v1::kJobManifestObject);
    v1::JobManifest manifest;
    if (!text.ok() || !manifest.ParseFromString(*text)) return;
    if (manifest.job_id() != job_id_ && manifest.root_pid() != namespaces_.Inside(options_.pid)) return;
    files_->LearnBefore({manifest.written_files().begin(), manifest.written_files().end()});
  }

  absl::Status MakeRoom() {
    StagingRoom::Wanted wanted;
    wanted.bytes = MemoryBytes() + files_->EstimateContents() + kStagingSlackBytes;
    wanted.budget_bytes = options_.staging_budget_bytes;
    // What comes off its GPUs, and what the store takes to put all of it away.
    wanted.beside_bytes =
        gpu_bytes_ + (wanted.bytes + gpu_bytes_) / store::kPageSize * store::kWriterBytesPerPage;
    RK_ASSIGN_OR_RETURN(const StagingRoom room, StagingRoom::Take(wanted, cancel_));
    available_bytes_ = room.available_bytes();
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
    for (const auto& [resource, path] : job_.files_outside) dump.external.push_back(resource);
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
    // What the job has done since is not in the image.
    manifest.set_captured_unix_ns(UnixNanos() - (MonotonicNanos() - result_.frozen_ns));
    manifest.set_log(options_.log);
    if (!gpu_pids_.empty()) {
      gpu::GpuRecord record = gpu_record_;
      for (pid_t& pid : record.pids) pid = NumberInImage(pid);
      for (gpu::GpuUse& use : record.uses) use.pid = NumberInImage(use.pid);
      *manifest.mutable_gpu() = ToProto(record);
    }
    RecordNeededFiles(frozen_.image, &manifest);
    files_->RecordOpened(&manifest);
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

  // CRIU names no processes that the job is connected to.
  absl::Status WithOutsidePeers(const absl::Status& status) const {
    if (criu::DiagnosisId(status) != "unix-external") return status;
    const std::string peers = DescribeOutsidePeers(job_.pids(), options_.caller);
    return peers.empty() ? status : WithMessage(status, absl::StrCat(status.message(), "\n", peers));
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
  uint64_t tls_before_ = 0;  // sessions that had begun before it was looked at
  JobInspection job_;
  criu::JobNamespaces namespaces_;
  std::optional<FrozenFiles> files_;
  std::vector<v1::ThreadPlacement> placements_;
  std::vector<v1::ThreadManners> manners_;
  std::string job_id_, dump_gate_;
  std::string own_mounts_;  // mounts_check.h
  std::vector<pid_t> gpu_pids_;
  std::map<pid_t, pid_t> gpu_numbers_;  // of these, to those in the image
  uint64_t gpu_bytes_ = 0;
  uint64_t available_bytes_ = 0;         // of the machine, before the freeze
  std::unique_ptr<gpu::HeldJob> held_;   // where its memory stays out
  std::atomic<bool> gpu_moves_ = false;  // just now
  gpu::GpuRecord gpu_record_;
  std::string left_on_devices_;  // by the driver, where the dump failed
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
