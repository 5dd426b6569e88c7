// Checkpoint: a running job becomes an image.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/file_patterns.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/status.h"
#include "ckpt/capture.h"
#include "ckpt/held_job.h"
#include "ckpt/standing_job.h"
#include "criu/failure.h"
#include "daemon/call_monitor.h"
#include "daemon/connection_locks.h"
#include "daemon/image_lookup.h"
#include "daemon/image_visit.h"
#include "daemon/job_file.h"
#include "daemon/job_registry.h"
#include "daemon/job_strays.h"
#include "daemon/monitor_observer.h"
#include "daemon/proto_conversion.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "daemon/supervisor.h"
#include "rekindle/v1/image_layout.h"
#include "restore/pager_client.h"

namespace rekindle::daemon {
namespace {

// Of an image for a caller while the job's supervisor takes its own.
constexpr int kMostTries = 5;
// Of one that met something of the moment, at ever longer pauses: each try stops the job for a moment.
constexpr absl::Duration kMomentMayTake = absl::Seconds(10), kFirstPause = absl::Milliseconds(20);

using CaptureReporter = MonitorObserver<ckpt::CaptureObserver, ckpt::CaptureProgress>;

// Knows whether the capture has come to its gate, where others may wait for it.
class NotedGate final : public ckpt::CaptureGate {
 public:
  // `job`: null where none is supervised.
  NotedGate(ckpt::CaptureGate& gate, std::shared_ptr<SupervisedJob> job)
      : gate_(gate), job_(std::move(job)) {}
  absl::Status BeforeFreeze() override {
    reached_ = true;
    return gate_.BeforeFreeze();
  }
  void StandsStill() override {
    if (job_) job_->KeepItsFilesMeanwhile();
    gate_.StandsStill();
  }
  absl::Status OnFrozen() override {
    if (job_) job_->AwaitItsFilesKept();
    return gate_.OnFrozen();
  }
  absl::Status BeforeCommit() override { return gate_.BeforeCommit(); }
  void BeforeNextTry() override { gate_.BeforeNextTry(); }
  bool reached() const { return reached_; }

 private:
  ckpt::CaptureGate& gate_;
  const std::shared_ptr<SupervisedJob> job_;
  std::atomic<bool> reached_ = false;
};

// A copy's pages that have not been asked for yet are part of its image too.
absl::Status BringInMemory(Node& node, const store::Store& store, const JobRecord& job) {
  if (job.instance.empty()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::vector<restore::PagerClient> pagers, node.clones().ConnectToRunningPagers(store));
  for (restore::PagerClient& pager : pagers) {
    // Whose it is not has nothing to bring in. What is not there afterwards the capture refuses.
    RK_RETURN_IF_ERROR(Annotate(pager.Fill(job.instance).status(),
                                absl::StrCat("bringing in the rest of the memory of process ", job.pid)));
  }
  return absl::OkStatus();
}

// Of a job that its supervisor looks after, that tells of them.
Strays StraysOf(Node& node, const JobRecord& job) {
  if (job.name.empty() || !job.instance.empty()) return {};
  const absl::StatusOr<std::vector<JobRecord>> all = node.jobs().List();
  if (!all.ok()) return {};
  JobTraits traits;
  for (const JobRecord& other : *all) {
    if (other.name != job.name && JobRegistry::Lives(other)) traits.others.push_back(other.pid);
  }
  if (::getsid(job.pid) == job.pid) traits.session = job.pid;
  if (job.owner != 0) traits.user = job.owner;
  if (!job.mark.empty()) {
    traits.mark = absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "=",
                               JobFile::PathOf(node.options().runtime_directory, job.mark));
  }
  return FindStrays(traits, job.pid);
}

}  // namespace

absl::Status Checkpoint(Node& node, const Call& call, const v1::CheckpointRequest& request,
                        const EventSink<v1::CheckpointEvent>& send) {
  RK_ASSIGN_OR_RETURN(std::string reference, store::NormalizeReference(request.reference()));
  // A supervised job of an earlier version may have such a name, and can't be given another one.
  if (call.kept_staging == nullptr) RK_RETURN_IF_ERROR(CheckNoNameOfFunctions(reference));
  if (request.no_parent() && !request.parent().empty()) {
    return absl::InvalidArgumentError("--parent and --no-parent exclude each other: give one of them");
  }
  if (request.tcp_established() && request.tcp_close()) {
    return absl::InvalidArgumentError(
        "--tcp-established and --tcp-close exclude each other: give one of them");
  }
  for (const std::string& path : request.ignore_paths()) {
    RK_RETURN_IF_ERROR(CheckAbsolute(path, "the path to ignore"));
  }
  std::vector<std::string> track_paths(request.track_paths().begin(), request.track_paths().end());
  RK_RETURN_IF_ERROR(CheckFilePatterns(track_paths));
  // A part's and the supervisor's own are asked for in requests of ours.
  if (call.part == nullptr && call.kept_staging == nullptr)
    RK_RETURN_IF_ERROR(CheckLabelsOfCaller(request.labels()));
  RK_RETURN_IF_ERROR(CheckNoOriginLabel(request.labels()));
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(JobRecord job, FindTarget(node, call.caller, request.pid(), request.job(),
                                                /*of_supervisor=*/call.kept_staging != nullptr));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(call.caller, job.owner, "checkpoint", job.pid));
  if (request.stop() && !job.name.empty() && !node.supervisor().CheckNameIsFree(job.name).ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", job.name, "' is supervised and would be brought back at once: use 'rekindle stop ",
        "--ckpt ", job.name, "', or leave out --stop"));
  }
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.Criu());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kCreate));
  RK_ASSIGN_OR_RETURN(const std::optional<store::ImageInfo> taken, store->FindByName(reference));
  if (taken) {
    if (!request.replace()) {
      return absl::AlreadyExistsError(absl::StrCat(
          "image '", reference, "' exists: choose another tag, or take its name with --replace"));
    }
    RK_RETURN_IF_ERROR(node.policy().MayUseImage(call.caller, taken->owner, "replace", reference));
  }
  ckpt::CaptureOptions options;
  if (!request.parent().empty()) {
    RK_ASSIGN_OR_RETURN(store::ImageInfo parent,
                        FindImageFor(node, *store, call.caller, request.parent(), "build on"));
    options.parent = parent.digest;  // whoever has the name by then
  }
  options.pid = job.pid;
  options.reference = reference;
  options.no_parent = request.no_parent();
  options.stand_still = request.stop() && call.part != nullptr;
  options.stop = request.stop() && !options.stand_still;
  options.replace = request.replace();
  options.replace_others = node.policy().IsAdmin(call.caller);
  options.tcp_established = request.tcp_established();
  options.tcp_close = request.tcp_close();
  options.staging_budget_bytes = request.staging_budget_bytes();
  options.file_contents = request.file_contents();
  options.ignore_paths.assign(request.ignore_paths().begin(), request.ignore_paths().end());
  options.track_paths = std::move(track_paths);
  if (request.gpu_lock_timeout_seconds() > 0) {
    options.gpu_lock_timeout = absl::Seconds(request.gpu_lock_timeout_seconds());
  }
  options.owner = call.caller.uid;
  options.caller = node.policy().IsAdmin(call.caller) ? 0 : call.caller.uid;
  options.caller_groups = call.caller.groups;
  options.caller_groups.push_back(call.caller.gid);
  options.caller_pid = call.caller.pid;
  options.job_name = job.name;
  options.log = job.log;
  options.labels.insert(request.labels().begin(), request.labels().end());
  RK_RETURN_IF_ERROR(store::CheckLabels(options.labels));
  options.labels.erase(v1::kJobMarkLabel);
  if (!job.mark.empty()) options.labels[v1::kJobMarkLabel] = job.mark;
  options.gate = call.gate;
  if (call.part) options.prepared_id = call.part->prepared_id;
  options.dirty_pages = node.dirty_pages();
  options.runtime_directory = node.options().runtime_directory;
  options.spill_directory = node.options().store;
  options.kept_staging = call.kept_staging;
  options.sparing = call.kept_staging != nullptr;

  RK_RETURN_IF_ERROR(BringInMemory(node, *store, job));

  std::optional<ConnectionLocks> of_replaced;
  if (taken && options.prepared_id.empty()) of_replaced.emplace(*store, absl::MakeConstSpan(&*taken, 1));

  CallMonitor monitor(call, [&](const v1::Progress& progress) {
    v1::CheckpointEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  CaptureReporter observer(monitor);
  const bool by_supervisor = call.kept_staging != nullptr;
  const Strays strays = by_supervisor ? Strays() : StraysOf(node, job);
  // Where nobody else says when it is frozen, the job does.
  std::shared_ptr<SupervisedJob> supervised;
  if ((options.gate == nullptr || call.part) && !job.name.empty())
    supervised = node.supervisor().FindRunning(job.name, job.pid);
  // An administrator's image of a user's job is not the user's.
  const bool may_go_on_from_it = !supervised || supervised->MayUseImagesOf(options.owner);
  std::optional<NotedGate> of_group;
  if (call.part) options.gate = &of_group.emplace(*call.part->gate, supervised);
  if (supervised) {
    for (std::string& path : supervised->TrackPaths()) options.track_paths.push_back(std::move(path));
  }
  // Before it is taken: later images have greater ones. The supervisor's own have theirs.
  uint64_t number = 0;
  absl::StatusOr<ckpt::CaptureResult> result = absl::UnknownError("");
  const Deadline moment(kMomentMayTake);
  absl::Duration pause = kFirstPause;
  for (int tries = 1;;) {
    if (supervised) supervised->AwaitOwnImage(monitor.cancelled());
    if (!job.name.empty() && !request.stop() && !by_supervisor && may_go_on_from_it)
      number = node.supervisor().TakeNumber(job.name, job.pid, &options.labels);
    std::optional<ImageVisit> visit;
    if (supervised && !of_group) options.gate = &visit.emplace(supervised, monitor.cancelled());
    result = ckpt::Capture(*store, criu, &node.gpus(), options, &observer, &monitor.cancelled());
    if (visit && result.ok()) visit->OnStored();
    // The supervisor may have begun with its next one just now. A group that has heard of this one has given
    // up with it.
    if (monitor.cancelled().load() || (of_group && of_group->reached())) break;
    if (criu::WasOfTheMoment(result.status()) && !moment.passed()) {
      // The job need not wait meanwhile.
      if (visit) options.gate = nullptr;
      visit.reset();
      if (options.gate != nullptr) options.gate->BeforeNextTry();
      pollfd cancelled{monitor.cancel_fd(), POLLIN, 0};
      ::poll(&cancelled, 1, static_cast<int>(absl::ToInt64Milliseconds(std::min(pause, moment.left()))) + 1);
      pause *= 2;
    } else if (!supervised || !absl::IsAborted(result.status()) || ++tries > kMostTries) {
      break;
    }
  }
  node.counts().captures.Add(result.status());
  RK_RETURN_IF_ERROR(result.status());
  node.counts().frozen_ns += static_cast<int64_t>(result->freeze_seconds * 1e9);
  node.counts().stored_bytes += result->image.stats.stored_bytes;
  if (const Strays both = strays.empty() || request.stop() ? strays : InBoth(strays, StraysOf(node, job));
      !both.empty())
    result->warnings.push_back(DescribeStrays(both, /*are_ended_with_it=*/supervised != nullptr));
  if (of_replaced) of_replaced->RemoveOf(*taken);
  if (result->standing) *call.part->standing = std::move(result->standing);
  // One that the hook held until an image was taken of it goes on. A group's may be given up yet.
  if (!request.stop() && result->hook_process != 0 && options.prepared_id.empty()) {
    absl::Status let = ckpt::LetHeldJobGoOn(result->hook_process);
    if (!let.ok()) result->warnings.push_back(std::string(let.message()));
  }
  if (!job.name.empty() && options.prepared_id.empty()) {
    absl::Status noted = node.jobs().SetImage(job, result->image.reference);
    if (!noted.ok()) Log(LogLevel::kWarning, noted.message());
  }
  if (!options.prepared_id.empty() && !request.stop()) {
    // Whoever has published it may have done that already.
    *call.part->when_published = [held = result->hook_process] {
      if (held != 0) ckpt::LetHeldJobGoOn(held).IgnoreError();
    };
  }
  if (!may_go_on_from_it && !request.stop()) {
    result->warnings.push_back(absl::StrCat("job '", job.name, "' is supervised for uid ",
                                            supervised->owner(),
                                            ", whose image this is not: when the job dies it is not brought "
                                            "back from it"));
  }
  if (!job.name.empty() && !request.stop() && may_go_on_from_it) {
    v1::RestartPoint point;
    point.set_image(result->image.reference);
    point.set_digest(result->image.digest);
    point.set_taken_ns(result->frozen_ns);
    point.set_number(number);
    if (options.prepared_id.empty()) {
      node.supervisor().AddPoint(job.name, job.pid, std::move(point));
    } else {
      *call.part->when_published = [&node, job, let_go = std::move(*call.part->when_published),
                                    point = std::move(point)] {
        let_go();
        node.supervisor().AddPoint(job.name, job.pid, point);
      };
    }
  }
  Log(LogLevel::kInfo, absl::StrCat("image '", result->image.reference, "' taken of process ", job.pid));
  if (result->unchanged_bytes > 0) {
    Log(LogLevel::kInfo,
        absl::StrCat(FormatBytes(result->unchanged_bytes), " of its memory had not been written since image ",
                     result->image.parent_digest, " and was not copied"));
  }

  RK_RETURN_IF_ERROR(Annotate(result->ended, absl::StrCat("image '", result->image.reference,
                                                          "' is stored, but its job has not ended")));

  monitor.Stop();  // for which a client may take its time: what stands still for the image goes on before
  v1::CheckpointEvent event;
  v1::CheckpointResult* out = event.mutable_result();
  ToProto(result->image, out->mutable_image());
  out->set_freeze_seconds(result->freeze_seconds);
  out->set_commit_seconds(result->commit_seconds);
  out->set_total_seconds(result->total_seconds);
  out->set_processes(result->processes);
  out->set_threads(result->threads);
  out->set_gpu_bytes(result->gpu_bytes);
  ToProto(result->phases, out->mutable_phases());
  ToProto(result->warnings, out->mutable_warnings());
  ToProto(result->command_lines, out->mutable_command_lines());
  send(event);
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
