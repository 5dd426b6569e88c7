// Restore: an image becomes a running job.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "base/timeline.h"
#include "criu/job_namespaces.h"
#include "criu/process_tree.h"
#include "daemon/call_monitor.h"
#include "daemon/copies.h"
#include "daemon/image_lookup.h"
#include "daemon/job_log.h"
#include "daemon/job_mark.h"
#include "daemon/job_room.h"
#include "daemon/monitor_observer.h"
#include "daemon/proto_conversion.h"
#include "daemon/roll_back.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervisor.h"
#include "restore/container_place.h"
#include "restore/file_rollback.h"
#include "restore/job_logs.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

using RestoreReporter = MonitorObserver<restore::RestoreObserver, restore::RestoreProgress>;

// Was any of the job's descriptors 0, 1 and 2 something that is not there any more, such as a terminal?
bool NeedsStdio(const v1::JobManifest& manifest) {
  return std::any_of(manifest.stdio().begin(), manifest.stdio().end(), [](const v1::StdioSlot& slot) {
    return slot.kind() == "tty" || !slot.resource().empty();
  });
}

// Is one opened for what it writes?
bool GetsLog(const v1::RestoreRequest& request, const v1::JobManifest& manifest) {
  if (request.into() != 0) return false;
  return !request.log().empty() || (NeedsStdio(manifest) && request.stdio_fds().empty());
}

// A roll-back may have made it again, in the place of what was opened before.
absl::Status FollowLog(const std::optional<RunAs>& user, const std::string& log, int file) {
  struct stat opened, now;
  if (::fstat(file, &opened) != 0 || !S_ISREG(opened.st_mode)) return absl::OkStatus();
  if (::stat(log.c_str(), &now) != 0) return ErrnoStatus(errno, absl::StrCat("looking at the log ", log));
  if (opened.st_dev == now.st_dev && opened.st_ino == now.st_ino) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const UniqueFd again, OpenFileAs(user, log, O_WRONLY | O_APPEND | O_NOCTTY, 0));
  if (::dup3(again.get(), file, O_CLOEXEC) < 0) return ErrnoStatus(errno, "opening the log again");
  return absl::OkStatus();
}

// With whose rights files are touched: an administrator's restore has those of the job, no more.
std::optional<RunAs> UserForFiles(const Node& node, const Caller& caller, const v1::JobManifest& manifest) {
  return node.policy().IsAdmin(caller) ? UserOfJob(manifest) : Node::UserOf(caller);
}

void SendRolledBack(const std::vector<v1::FileRollback>& files, const EventSink<v1::JobEvent>& send) {
  v1::JobEvent event;
  v1::FilesRolledBack* rolled_back = event.mutable_rolled_back();  // also of no files
  for (const v1::FileRollback& file : files) *rolled_back->add_files() = file;
  send(event);
}

absl::Status WritePidfile(int file, const std::string& path, pid_t pid) {
  const std::string text = absl::StrCat(pid, "\n");
  if (::ftruncate(file, 0) != 0 && errno != EINVAL) {  // a pipe or terminal has no length
    return ErrnoStatus(errno, absl::StrCat("writing the pidfile ", path));
  }
  return WriteFully(file, text.data(), text.size(), path);
}

bool HasSharedMemory(const v1::JobManifest& manifest) {
  return std::any_of(manifest.written_files().begin(), manifest.written_files().end(),
                     [](const v1::WrittenFile& file) { return file.shared_memory(); });
}

// Where the job's files are.
void RemoveNamelessMemory(pid_t into, const v1::JobManifest& manifest) {
  criu::JobNamespaces namespaces;
  if (into != 0) {
    absl::StatusOr<criu::JobNamespaces> container = criu::JobNamespaces::Around(into);
    if (!container.ok()) return;  // it has gone, with its memory
    namespaces = *std::move(container);
  }
  namespaces
      .Within([&manifest] {
        restore::RemoveNamelessMemory(manifest);
        return absl::OkStatus();
      })
      .IgnoreError();
}

// What every restore needs.
struct Sources {
  std::shared_ptr<store::Store> store;
  store::ImageInfo info;
  criu::Installation criu;
};
absl::Status CheckInto(const Node& node, const Caller& caller, const v1::RestoreRequest& request) {
  if (!node.policy().IsAdmin(caller)) {
    return absl::PermissionDeniedError("only administrators may restore a job into a container (--into)");
  }
  if (request.into() < 0 || request.has_clone() || !request.log().empty()) {
    return absl::InvalidArgumentError(
        "--into takes the PID of a container's process, and does not go with --clone and --log: the job has "
        "the container's output");
  }
  RK_RETURN_IF_ERROR(CheckMeansOurs(caller, request.into()));
  RK_RETURN_IF_ERROR(criu::JobNamespaces::Around(request.into()).status());
  return restore::CgroupMembership::OfContainer(request.into()).status();
}

restore::SeenFrom PlaceOf(const v1::RestoreRequest& request) {
  return request.into() != 0 ? restore::SeenFrom::kContainer : restore::SeenFrom::kMachine;
}

absl::Status DryRun(const Node& node, const Call& call, const v1::RestoreRequest& request,
                    const store::Store& store, const store::ImageInfo& info,
                    const EventSink<v1::JobEvent>& send) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store.OpenImage(info.digest));
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, restore::ReadJobManifest(*reader));
  const std::optional<RunAs> user = UserForFiles(node, call.caller, manifest);
  criu::JobNamespaces namespaces;
  if (request.into() != 0) {
    RK_RETURN_IF_ERROR(CheckInto(node, call.caller, request));
    RK_ASSIGN_OR_RETURN(namespaces, criu::JobNamespaces::Around(request.into()));
  }
  RollbackOfFiles files;
  std::set<std::string> replaced;
  if (GetsLog(request, manifest)) replaced = restore::FilesReplacedByLog(manifest);
  RK_RETURN_IF_ERROR(namespaces.Within([&]() -> absl::Status {
    RK_ASSIGN_OR_RETURN(
        files, RollBackFiles(*reader, manifest, request.rollback(), user, PlaceOf(request), replaced));
    return absl::OkStatus();
  }));
  SendRolledBack(files.Reports(), send);
  return absl::OkStatus();
}

absl::StatusOr<Sources> FindSources(Node& node, const Call& call, const v1::RestoreRequest& request) {
  if (!request.name().empty()) {
    RK_RETURN_IF_ERROR(node.jobs().CheckNameIsFree(request.name()));
    // Also while it waits to be brought back; unless it is the supervisor who does that.
    if (call.in_memory == nullptr)
      RK_RETURN_IF_ERROR(node.supervisor().CheckNameIsFreeFor(call.caller, request.name()));
  }
  if (!request.pidfile().empty()) RK_RETURN_IF_ERROR(CheckAbsolute(request.pidfile(), "the pidfile"));
  if (request.into() != 0) RK_RETURN_IF_ERROR(CheckInto(node, call.caller, request));
  Sources sources;
  RK_ASSIGN_OR_RETURN(sources.store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(sources.info,
                      FindImageFor(node, *sources.store, call.caller, request.image(), "restore"));
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(sources.criu, node.Criu());
  return sources;
}

}  // namespace

absl::StatusOr<RegisteredJob> RestoreJob(Node& node, const Call& call, const v1::RestoreRequest& request,
                                         const EventSink<v1::JobEvent>& send) {
  const int64_t begin = MonotonicNanos();
  RK_ASSIGN_OR_RETURN(Sources sources, FindSources(node, call, request));
  const auto& [store, info, criu] = sources;
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> reader, store->OpenImage(info.digest));
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, restore::ReadJobManifest(*reader));

  const std::string mark = MarkOfImage(info.labels);
  const MarkUses::Use in_work =
      node.mark_uses().Restore(mark.empty() ? manifest.job_name() : mark, request.name());

  restore::RestoreOptions options;
  options.tcp_close = request.tcp_close();
  options.ignore_mismatch = request.ignore_mismatch();
  RK_ASSIGN_OR_RETURN(options.gpu_map, FromProto(request.gpu_map()));
  options.caller = node.policy().IsAdmin(call.caller) ? 0 : call.caller.uid;
  options.into = request.into();
  options.placed_like = request.into() != 0 ? request.into() : call.caller.pid;
  options.runtime_directory = node.options().runtime_directory;
  options.in_memory = call.in_memory;
  JobRecord record;
  record.name = !request.name().empty() ? request.name() : manifest.job_name();
  record.command = manifest.command();
  record.owner = call.caller.uid;
  record.image = info.reference;
  record.mark = mark;
  if (call.part) {
    record.provisional_of = ::getpid();
    record.provisional_of_start_ticks = criu::StartTicks(::getpid()).value_or(0);
  }
  std::optional<NotedJob> noted;
  std::vector<std::string> warnings_of_log;

  std::string log = manifest.log();
  UniqueFd log_file;
  NewLog new_log;
  std::vector<UniqueFd> stdio;
  if (request.into() != 0) {
    RK_ASSIGN_OR_RETURN(stdio, StdioOf(request.into()));
    for (const UniqueFd& fd : stdio) options.stdio.push_back(fd.get());
    log.clear();
  } else if (!request.log().empty()) {
    RK_RETURN_IF_ERROR(CheckAbsolute(request.log(), "the log"));
    log = request.log();
    RK_ASSIGN_OR_RETURN(
        log_file, OpenFileAs(Node::UserOf(call.caller), log, O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY, 0600));
  } else if (NeedsStdio(manifest)) {
    if (request.stdio_fds().empty()) {
      std::string name =
          manifest.job_name().empty() ? JobNameFromCommand(manifest.command()) : manifest.job_name();
      RK_ASSIGN_OR_RETURN(JobLog made, MakeDefaultLog(node, call.caller, name));
      log = std::move(made.path);
      log_file = std::move(made.file);
      new_log = std::move(made.made);
    } else {
      RK_ASSIGN_OR_RETURN(stdio, TakeStdio(call.caller, request));
      for (const UniqueFd& fd : stdio) options.stdio.push_back(fd.get());
      log.clear();
    }
  }
  // What can't be written is to be known before anything runs.
  UniqueFd pidfile;
  if (!request.pidfile().empty()) {
    RK_ASSIGN_OR_RETURN(pidfile, OpenFileAs(Node::UserOf(call.caller), request.pidfile(),
                                            O_WRONLY | O_CREAT | O_NOCTTY, 0644));
  }
  // By descriptor: what was opened with the caller's rights is what the job gets.
  if (log_file.valid()) options.log = absl::StrCat("/proc/", ::getpid(), "/fd/", log_file.get());
  uint64_t log_offset = FileSize(log);
  RollbackOfFiles rollback_of_files;
  bool files_made = false;  // or half of them
  v1::Rollback rollback = request.rollback();
  // The message's own default is APPEND, which nobody has asked for.
  if (!request.has_rollback()) rollback.set_mode(v1::Rollback::NONE);
  options.before_running = [&](pid_t root) -> absl::Status {
    if (call.part && call.part->before_running) RK_RETURN_IF_ERROR(call.part->before_running());
    // Where it was given another log, that has a name.
    record.log = log;
    if (request.into() == 0 && !log_file.valid())
      record.log = LogOfRestored(root, log, manifest, &warnings_of_log);
    record.pid = root;
    record.started_unix_ns = UnixNanos();
    RK_ASSIGN_OR_RETURN(noted, NoteJob(node, record, /*unique_name=*/request.name().empty()));
    return absl::OkStatus();
  };
  options.files_settled = request.has_rollback();
  options.ignored_paths.assign(rollback.ignore_paths().begin(), rollback.ignore_paths().end());
  if (call.takes_edited_files) options.edited_files = restore::EditedFiles::kWarn;
  if (request.has_rollback() || HasSharedMemory(manifest)) {
    // Looked up here: it may be called where a container says who is who.
    options.roll_back = [&, user = UserForFiles(node, call.caller, manifest)](
                            const store::ImageReader& image,
                            const v1::JobManifest& of) -> absl::StatusOr<std::set<std::string>> {
      files_made = true;
      std::set<std::string> replaced;
      if (log_file.valid()) replaced = restore::FilesReplacedByLog(of);
      RK_ASSIGN_OR_RETURN(rollback_of_files,
                          RollBackFiles(image, of, rollback, user, PlaceOf(request), replaced));
      if (log_file.valid()) RK_RETURN_IF_ERROR(FollowLog(Node::UserOf(call.caller), log, log_file.get()));
      return rollback_of_files.cut_last();
    };
    options.before_cut = [&] { return rollback_of_files.CatchUp(); };
    options.cut_off = [&]() -> absl::Status {
      RK_RETURN_IF_ERROR(rollback_of_files.CutOff());
      log_offset = FileSize(log);
      return absl::OkStatus();
    };
  }

  RK_ASSIGN_OR_RETURN(restore::CgroupMembership cgroups,
                      request.into() != 0 ? restore::CgroupMembership::OfContainer(request.into())
                                          : CgroupsForJob(call.caller, request.detach()));
  options.cgroups = &cgroups;

  CallMonitor monitor(call, [&](const v1::Progress& progress) {
    v1::JobEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  options.cancel_fd = monitor.cancel_fd();
  options.timeline = request.timeline();
  RestoreReporter observer(monitor);
  absl::StatusOr<restore::RestoreResult> result =
      restore::Restore(*reader, criu, &node.gpus(), options, &observer);
  node.counts().restores.Add(result.status());
  reader.reset();  // gc may have its packs again; the job may run for long before this call ends
  monitor.Stop();
  if (files_made) RemoveNamelessMemory(request.into(), manifest);
  if (!result.ok()) rollback_of_files.GiveUp();
  if (!result.ok() && noted) node.jobs().Forget(noted->record, noted->before);
  std::vector<v1::FileRollback> rolled_back = rollback_of_files.Reports();
  // What nobody asked for is as silent as the rest of the memory, unless it was not done.
  if (!request.has_rollback()) {
    std::erase_if(rolled_back,
                  [](const v1::FileRollback& file) { return file.action() != v1::FileRollback::LEFT; });
  }
  if (!rolled_back.empty()) SendRolledBack(rolled_back, send);
  RK_RETURN_IF_ERROR(result.status());

  std::move(warnings_of_log.begin(), warnings_of_log.end(), std::back_inserter(result->warnings));
  // Before somebody may collect it: it may end at once.
  if (request.into() != 0) restore::TellPlace(request.into(), result->root);
  absl::StatusOr<RegisteredJob> job = FollowJob(node, std::move(noted->record));
  if (!job.ok()) {
    criu::KillTree(result->root, /*reap_root=*/true);
    return Annotate(job.status(), "the restored job was ended again");
  }
  // Whoever supervises it tells its owner, and the other members of a group go back as well.
  if (request.into() == 0 && call.in_memory == nullptr && !call.part && !rolled_back.empty()) {
    v1::FilesRolledBack of;
    of.mutable_files()->Assign(rolled_back.begin(), rolled_back.end());
    for (auto& [file, warning] : WarnOfOthersCut(of.files(), ProcessTree(result->root), call.caller.pid))
      result->warnings.push_back(std::move(warning));
  }
  if (pidfile.valid()) {
    if (absl::Status written = WritePidfile(pidfile.get(), request.pidfile(), result->root); !written.ok()) {
      criu::KillTree(result->root, /*reap_root=*/false);  // the reaper has it
      return Annotate(written, "the restored job was ended again");
    }
    pidfile.Reset();
  }
  Log(LogLevel::kInfo, absl::StrCat("image '", info.reference, "' runs again: PID ", result->root, ", after ",
                                    FormatSeconds(result->total_seconds), " (",
                                    absl::StrJoin(result->phases, ", ",
                                                  [](std::string* out, const auto& phase) {
                                                    absl::StrAppend(out, phase.first, " ",
                                                                    FormatSeconds(phase.second));
                                                  }),
                                    ")"));
  // Until it has answered the channel must be there; it is not used further.
  const int64_t runs = MonotonicNanos();
  if (result->channel.valid() && WaitForAnswer(result->channel.get(), monitor.cancel_fd())) {
    result->timeline.push_back(SpanSince(runs, "rekindle", "restore", "answer"));
  }

  v1::JobEvent event;
  v1::JobStarted* started = event.mutable_started();
  ToProto(job->record, started->mutable_job());
  SetIdentity(node, job->record, started);
  started->set_seconds(result->total_seconds);
  started->set_log_offset(log_offset);
  ToProto(result->phases, started->mutable_phases());
  ToProto(result->warnings, started->mutable_warnings());
  if (std::string newer = WarningOfNewer(node, *store, call.caller, request.image(), info); !newer.empty())
    started->add_warnings(std::move(newer));
  ToProto(result->command_lines, started->mutable_command_lines());
  // Whoever gave it up would not know that it runs.
  if (call.IsCancelled() || !send(event)) {
    if (JobRegistry::Lives(job->record))
      criu::KillTree(result->root, /*reap_root=*/false);  // the reaper has it
    // It is to name nobody.
    if (!request.pidfile().empty()) {
      OpenFileAs(Node::UserOf(call.caller), request.pidfile(), O_WRONLY | O_TRUNC | O_NOCTTY, 0)
          .status()
          .IgnoreError();
    }
    return absl::CancelledError("the restore was cancelled; the restored job was ended again");
  }
  new_log.Keep();
  if (request.timeline()) {
    result->timeline.push_back(SpanSince(begin, "rekindle", "restore", "restore"));
    v1::JobEvent followed;
    followed.mutable_timeline()->set_pid(result->root);
    ToProto(result->timeline, followed.mutable_timeline()->mutable_spans());
    send(followed);
  }
  return *std::move(job);
}

absl::Status Restore(Node& node, const Call& call, const v1::RestoreRequest& request,
                     const EventSink<v1::JobEvent>& send) {
  RK_RETURN_IF_ERROR(CheckStdio(request));
  if (request.has_rollback() && request.has_clone()) {
    return absl::InvalidArgumentError(
        "--clone excludes --rollback, and its --dry-run: copies of one job share its files, and each writes "
        "on from where they are");
  }
  if (request.rollback().dry_run()) {
    RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
    RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                        FindImageFor(node, *store, call.caller, request.image(), "restore"));
    return DryRun(node, call, request, *store, info, send);
  }
  if (request.has_clone()) {
    RK_ASSIGN_OR_RETURN(Sources sources, FindSources(node, call, request));
    return RestoreClones(node, call, request, *sources.store, sources.info, sources.criu, send);
  }
  RK_ASSIGN_OR_RETURN(std::shared_ptr<void> room, TakeRoomForJob(node, call.caller));
  RK_ASSIGN_OR_RETURN(RegisteredJob job, RestoreJob(node, call, request, send));
  room.reset();
  if (request.detach()) return absl::OkStatus();
  return SendJobEnds(node, call, {&job, 1}, send);
}

}  // namespace rekindle::daemon
