#include "ckpt/frozen_dump.h"

#include <limits.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/companion_program.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/pidfd.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/stoppable_thread.h"
#include "base/subprocess.h"
#include "base/unix_socket.h"
#include "ckpt/death_watch.h"
#include "ckpt/dump_gate.h"
#include "ckpt/gpu_move.h"
#include "ckpt/image_staging.h"
#include "ckpt/kernel_workers.h"
#include "ckpt/lost_names.h"
#include "ckpt/nameless_memory.h"
#include "criu/capture_server.h"
#include "criu/failure.h"
#include "criu/run_name.h"

namespace rekindle::ckpt {
namespace {

constexpr char kPreload[] = "rekindle-criu-preload.so";
constexpr size_t kDrainThreads = 2;
constexpr absl::Duration kPoll = absl::Milliseconds(20);

// Answers CRIU at one of the sockets of dump_gate.h.
class Gate {
 public:
  // `may_go_on` waits until CRIU may; on the gate's thread. `*failure` is set when CRIU can't be answered, or
  // something has run out: then it is turned away, the dump fails and the job goes on. It may be read once
  // the gate is gone.
  static absl::StatusOr<std::unique_ptr<Gate>> Open(const std::string& work_directory, const char* socket,
                                                    std::function<absl::Status()> may_go_on,
                                                    absl::Status* failure) {
    std::unique_ptr<Gate> gate(new Gate(std::move(may_go_on), failure));
    std::string path = absl::StrCat(work_directory, "/", socket);
    RK_ASSIGN_OR_RETURN(gate->listener_, ListenAt(path));
    gate->path_ = path;
    RK_RETURN_IF_ERROR(gate->thread_.Start([g = gate.get()] { g->Run(); }));
    return gate;
  }

  ~Gate() {
    thread_.Stop();
    // Another dump in this folder makes its own.
    if (!path_.empty()) ::unlink(path_.c_str());
  }

 private:
  Gate(std::function<absl::Status()> may_go_on, absl::Status* failure)
      : may_go_on_(std::move(may_go_on)), failure_(failure) {}

  void Run() {
    for (;;) {
      const auto woken = thread_.Await(listener_.get());
      if (!woken.ok()) return HangUp(Annotate(woken.status(), "waiting for CRIU at the dump gate"));
      if (*woken == StoppableThread::Woken::kStopped) return;
      UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return HangUp(ErrnoStatus(errno, "answering CRIU at the dump gate"));
      }
      const absl::Status may = CatchNoMoreThreads(may_go_on_);
      if (absl::IsResourceExhausted(may)) *failure_ = may;
      char verdict = may.ok() ? 'g' : 'n';
      ::send(connection.get(), &verdict, 1, MSG_NOSIGNAL);
    }
  }

  // The gate program finds its connection reset.
  void HangUp(absl::Status why) {
    listener_.Reset();
    *failure_ = std::move(why);
  }

  const std::function<absl::Status()> may_go_on_;
  absl::Status* const failure_;
  std::string path_;  // of the socket, once it is there
  UniqueFd listener_;
  StoppableThread thread_;
};

// Until CRIU has told that it will freeze the job it has not touched it, and can be killed.
class UntouchedJob {
 public:
  // From now on CRIU may not be killed. False: it is being killed.
  bool Touch() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    touched_ = true;
    return !given_up_;
  }
  // Must live for as long as GiveUp may be called.
  void CriuIs(int pidfd) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    criu_ = pidfd;
    if (given_up_) SendSignal(criu_, SIGKILL);
  }
  // One that can be killed is: it may stand still, and would never let go by itself.
  void GiveUp() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (touched_) return;
    given_up_ = true;
    if (criu_ >= 0) SendSignal(criu_, SIGKILL);
  }

 private:
  absl::Mutex mutex_;
  bool touched_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  int criu_ ABSL_GUARDED_BY(mutex_) = -1;
};

// Watches for cancellation and reports progress while the main thread waits in the capture server.
class Watcher {
 public:
  absl::Status Start(const std::atomic<bool>* cancel, ImageStaging* staging, DirectCopy* direct,
                     criu::CaptureServer* server, UntouchedJob* untouched,
                     const std::function<void(uint64_t)>& progress) {
    return thread_.Start([this, cancel, staging, direct, server, untouched, &progress] {
      while (thread_.Pause(kPoll)) {
        if (progress) progress(staging->bytes_staged() + (direct ? direct->bytes_copied() : 0));
        if (cancel && cancel->load()) {
          staging->Abandon(absl::CancelledError("the capture was cancelled"));
          if (direct) direct->Abandon(absl::CancelledError("the capture was cancelled"));
          server->Cancel();
          untouched->GiveUp();
          return;
        }
      }
    });
  }
  void Stop() { thread_.Stop(); }

 private:
  StoppableThread thread_;
};

std::vector<std::string> EnvironmentWithPreload(const std::string& library, bool takes_nameless_memory,
                                                const std::string& run, GpuMove* gpu) {
  std::vector<std::string> variables = {absl::StrCat("LD_PRELOAD=", library)};
  if (takes_nameless_memory) variables.push_back(absl::StrCat(TAKES_NAMELESS_MEMORY, "=1"));
  if (!run.empty()) variables.push_back(absl::StrCat(CRIU_RUN, "=", run));
  if (gpu != nullptr) {
    variables.insert(variables.end(), gpu->variables().begin(), gpu->variables().end());
  }
  return EnvironmentWith(variables);
}

// Within the job's mounts our folder has no name.
criu::DumpOptions AsCriuSees(criu::DumpOptions options, const criu::JobNamespaces& namespaces) {
  if (namespaces.enters_mounts()) options.images_directory = options.work_directory = ".";
  return options;
}

bool Cancelled(const std::atomic<bool>* cancel) { return cancel && cancel->load(); }

}  // namespace

absl::StatusOr<std::string> FindDumpGate() { return FindCompanionProgram(DUMP_GATE_PROGRAM); }

namespace {

// The library `preload` is loaded into CRIU. With `past_criu` its page filter finds Rekindle listening, and
// the bulk of the memory goes past CRIU; `*filter_failed` tells whether that is what the dump failed at.
// `ask_first`: `say` has not been asked yet whether the job may be frozen; it is when CRIU is ready.
absl::StatusOr<FrozenDump> DumpOnce(const criu::Installation& criu, const criu::DumpOptions& options,
                                    const criu::JobNamespaces& namespaces, const std::string& preload,
                                    bool past_criu, StagingArena* arena, const std::atomic<bool>* cancel,
                                    const std::function<void(uint64_t)>& progress, const FrozenLook& look,
                                    CaptureGate* say, const FrozenTracking& tracking, GpuMove* gpu,
                                    bool ask_first, bool* filter_failed) {
  ImageStaging staging(arena, kDrainThreads, look.most_file_bytes);
  RK_ASSIGN_OR_RETURN(auto server, criu::CaptureServer::Listen(options.images_directory, &staging));
  std::unique_ptr<DirectCopy> direct;
  if (past_criu) {
    RK_ASSIGN_OR_RETURN(direct, DirectCopy::Listen(options.work_directory, namespaces, arena, CopyThreads(),
                                                   tracking.unchanged));
  }
  absl::Status said;  // by `say`; read once the gate's thread has ended
  auto ours = [&staging, &look, &tracking, &said, say, gpu, d = direct.get()] {
    if (say) say->StandsStill();
    absl::Status status = staging.WaitUntilPagesAreOurs();
    // While memory is copied: CRIU's images have been complete for long by the time that much of it is.
    // Without the look there is an image all the same.
    if (status.ok() && look.at) {
      if (absl::Status seen = staging.LookAtFiles(look.at); !seen.ok())
        Log(LogLevel::kWarning, seen.message());
    }
    if (status.ok() && d) status = d->Finish();
    if (status.ok() && d && tracking.copied) tracking.copied(d->Memory());
    if (status.ok() && say) status = said = say->OnFrozen();
    if (status.ok() && gpu) gpu->MayGoOn();
    return status;
  };
  absl::Status unanswered;  // read like `said`
  RK_ASSIGN_OR_RETURN(auto gate, Gate::Open(options.work_directory, DUMP_GATE_SOCKET, ours, &unanswered));
  RK_ASSIGN_OR_RETURN(const pid_t root, namespaces.Outside(options.pid));
  std::optional<DeathWatch> deaths;
  absl::Notification started;
  int criu_pidfd = -1;
  pid_t criu_pid = 0;
  UntouchedJob untouched;
  std::unique_ptr<Gate> freeze_gate;
  // Of a job with device memory it was asked before that is moved, and nothing waits for a gate.
  const bool tells_first = ask_first || gpu == nullptr;
  if (tells_first) {
    auto may_freeze = [&]() -> absl::Status {
      if (!untouched.Touch()) return absl::CancelledError("the capture was cancelled");
      if (ask_first) RK_RETURN_IF_ERROR(said = say->BeforeFreeze());
      deaths.emplace(cancel);
      RK_RETURN_IF_ERROR(deaths->Start());
      started.WaitForNotification();
      deaths->Guard(criu_pidfd, criu_pid);
      return absl::OkStatus();
    };
    RK_ASSIGN_OR_RETURN(freeze_gate,
                        Gate::Open(options.work_directory, FREEZE_GATE_SOCKET, may_freeze, &unanswered));
  } else {
    untouched.Touch();
  }

  FrozenDump dump;
  SubprocessOptions start;
  start.argv = criu::FullCommand(criu, criu::DumpArguments(AsCriuSees(options, namespaces)));
  start.working_directory = options.work_directory;
  // A terminal's Ctrl-C must reach CRIU only through us: it kills CRIU in the middle of its work on the job.
  start.new_session = true;
  start.environment = EnvironmentWithPreload(preload, look.takes_nameless_memory, options.run, gpu);
  dump.command_line = criu::ShellLine(start.argv);
  // All threads are there before CRIU is: to leave it alone for want of one could harm the job.
  Watcher watcher;
  RK_RETURN_IF_ERROR(watcher.Start(cancel, &staging, direct.get(), server.get(), &untouched, progress));
  if (!tells_first) {
    deaths.emplace(cancel);
    RK_RETURN_IF_ERROR(deaths->Start());
  }
  RK_ASSIGN_OR_RETURN(Subprocess process, namespaces.Start(start));
  criu_pidfd = process.pidfd();
  criu_pid = process.pid();
  untouched.CriuIs(criu_pidfd);
  started.Notify();
  if (!tells_first) deaths->Guard(criu_pidfd, criu_pid);

  absl::StatusOr<std::vector<std::string>> received = server->Serve(process.pidfd());
  watcher.Stop();
  if (!received.ok()) staging.Abandon(received.status());
  // CRIU lets go of the job by itself: to kill it in the middle would have the job run into CRIU's code.
  // Where it waits for what can't be, it is told (DeathWatch).
  absl::StatusOr<ExitState> ended = process.Wait();
  freeze_gate.reset();
  const std::optional<pid_t> dead = deaths ? deaths->ended_for() : std::nullopt;
  const bool met_kernel_worker = deaths && deaths->met_kernel_worker();
  deaths.reset();
  staging.Abandon(absl::AbortedError("CRIU has ended"));
  absl::Status copied;
  if (direct) {
    copied = direct->status();
    // After a CRIU that was killed the job runs while it is read: that says nothing of its memory.
    *filter_failed = direct->unreadable() && ended.ok() && ended->signal == 0;
    direct->Abandon(absl::AbortedError("CRIU has ended"));
  }
  gate.reset();
  RK_ASSIGN_OR_RETURN(ExitState exit, std::move(ended));

  if (!exit.ok()) RemoveLeftExtraNames(options.work_directory, options.run, root);
  if (Cancelled(cancel)) return absl::CancelledError("the capture was cancelled; the job runs on");
  RK_RETURN_IF_ERROR(said);
  if (dead) {
    return absl::AbortedError(
        absl::StrCat("process ", *dead,
                     " of the job died while it was being captured: there is no image, and what is left of "
                     "the job runs on"));
  }
  if (!exit.ok() && met_kernel_worker) RK_RETURN_IF_ERROR(CheckNoKernelWorkers(ProcessTree(root)));
  if (!exit.ok()) {
    // Our own failure made CRIU fail: it is the one to tell.
    if (!received.ok() && !absl::IsCancelled(received.status())) return received.status();
    RK_RETURN_IF_ERROR(copied);
    RK_RETURN_IF_ERROR(unanswered);
    std::string log_path = absl::StrCat(options.work_directory, "/", options.log_file);
    std::string log = ReadFile(log_path).value_or("");
    return criu::FailureStatus(criu::Operation::kDump, exit, log, log_path);
  }
  RK_RETURN_IF_ERROR(received.status());
  dump.image = staging.Take();
  if (direct) {
    dump.bytes_past_criu = direct->bytes_copied();
    dump.bytes_ahead = direct->bytes_ahead();
    RK_RETURN_IF_ERROR(AddCopiedMemory(direct->Take(), &dump.image));
    dump.unchanged_bytes = dump.image.unchanged_bytes();
  }
  if (!dump.image.files.contains("inventory.img")) {
    return absl::InternalError("CRIU ended well but sent no inventory; the capture is not complete");
  }
  auto stats = ReadFile(absl::StrCat(options.work_directory, "/stats-dump"));
  if (stats.ok()) {
    auto parsed = criu::ParseDumpStats(*stats);
    if (parsed.ok()) dump.stats = *parsed;
  }
  return dump;
}

// With the job's device memory out while it is dumped.
absl::StatusOr<FrozenDump> DumpWithGpu(
    const criu::DumpOptions& options, GpuMove* gpu,
    absl::FunctionRef<absl::StatusOr<FrozenDump>(const criu::DumpOptions&)> dump) {
  if (gpu == nullptr) return CatchNoMoreThreads([&] { return dump(options); });
  RK_RETURN_IF_ERROR(CatchNoMoreThreads([&] { return gpu->Begin(options.work_directory); }));
  criu::DumpOptions with_plugin = options;
  with_plugin.plugins = gpu->plugins();
  absl::StatusOr<FrozenDump> dumped = CatchNoMoreThreads([&] { return dump(with_plugin); });
  // Why the memory could not be moved is why CRIU failed.
  RK_RETURN_IF_ERROR(gpu->End(dumped.ok()));
  if (dumped.ok()) return dumped;
  return BothFailures(dumped.status(), gpu->back());
}

}  // namespace

absl::StatusOr<FrozenDump> RunFrozenDump(const criu::Installation& criu, const criu::DumpOptions& options,
                                         const criu::JobNamespaces& namespaces, StagingArena* arena,
                                         const std::atomic<bool>* cancel,
                                         const std::function<void(uint64_t)>& progress,
                                         const FrozenLook& look, CaptureGate* gate, bool ask_first,
                                         const FrozenTracking& tracking, GpuMove* gpu) {
  RK_ASSIGN_OR_RETURN(std::string preload, FindCompanionProgram(kPreload));
  bool filter_failed = false;
  auto dump = DumpWithGpu(options, gpu, [&](const criu::DumpOptions& with) {
    return DumpOnce(criu, with, namespaces, preload, true, arena, cancel, progress, look, gate, tracking, gpu,
                    ask_first, &filter_failed);
  });
  if (dump.ok() || !filter_failed || Cancelled(cancel)) return dump;
  // Memory of a kind that only CRIU can read: the job runs again, and stands still a second time.
  Log(LogLevel::kWarning,
      absl::StrCat("copying memory past CRIU failed, so CRIU copies it: ", dump.status().message()));
  return DumpWithGpu(options, gpu, [&](const criu::DumpOptions& with) {
    return DumpOnce(criu, with, namespaces, preload, false, arena, cancel, progress, look, gate, {}, gpu,
                    /*ask_first=*/false, &filter_failed);
  });
}

}  // namespace rekindle::ckpt
