// Templates: put up, taken down, listed, and copies started from them.
#include <fcntl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/call_monitor.h"
#include "daemon/copies.h"
#include "daemon/function_template.h"
#include "daemon/image_lookup.h"
#include "daemon/job_room.h"
#include "daemon/process_info.h"
#include "daemon/rpc_support.h"
#include "daemon/rpcs.h"
#include "restore/template.h"

namespace rekindle::daemon {
namespace {

absl::Status CheckDaemon(const Node& node) {
  if (node.options().daemon) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "templates live in the daemon: start rekindled, and name it with --host if it is not at its usual "
      "socket");
}

void Describe(const TemplateRecord& record, const ProcessChildren& all, v1::Template* out) {
  out->set_name(record.name);
  out->set_image(record.image);
  out->set_pid(record.job.pid);
  out->set_owner_uid(record.owner);
  out->set_started_unix_ns(record.job.started_unix_ns);
  out->set_copies(record.copies);
  out->set_refusal(record.instance->refusal());
  out->set_seconds(record.seconds);
  out->set_resident_bytes(MeasureTree(record.job.pid, all).resident_bytes);
}

absl::StatusOr<TemplateRecord> FindTemplateFor(Node& node, const Caller& caller, const std::string& name) {
  RK_ASSIGN_OR_RETURN(TemplateRecord record, node.templates().Find(name));
  RK_RETURN_IF_ERROR(node.policy().MayUseJob(caller, record.owner, "use", record.job.pid));
  return record;
}

// It can't be forked, or does not answer.
bool CannotFork(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsDeadlineExceeded(status);
}

absl::Status HasEnded(const TemplateRecord& record) {
  return absl::NotFoundError(absl::StrCat("template '", record.name,
                                          "' has ended: put it up again with 'rekindle template up ",
                                          record.image, " --name ", record.name, "'"));
}

absl::StatusOr<restore::CloneResult> CloneInstead(Node& node, const TemplateRecord& record,
                                                  const restore::CloneOptions& options,
                                                  const std::string& why) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.Criu());
  absl::StatusOr<restore::CloneResult> copy = node.clones().Start(*store, criu, options);
  if (!copy.ok())
    return Annotate(copy.status(),
                    absl::StrCat(why, "; making a clone of its image ", record.image, " instead"));
  return copy;
}

}  // namespace

absl::Status TemplateUp(Node& node, const Call& call, const v1::TemplateUpRequest& request,
                        v1::Template* response) {
  RK_RETURN_IF_ERROR(node.CheckTakesWork());  // it would end at once
  RK_RETURN_IF_ERROR(CheckDaemon(node));
  if (!request.name().empty()) RK_RETURN_IF_ERROR(CheckJobName(request.name()));  // its copies are called so
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<void> room, TakeRoomForJob(node, call.caller));
  RK_ASSIGN_OR_RETURN(std::shared_ptr<store::Store> store, node.OpenStore(Node::Access::kRead));
  RK_ASSIGN_OR_RETURN(store::ImageInfo info,
                      FindImageFor(node, *store, call.caller, request.image(), "restore"));
  RK_RETURN_IF_ERROR(node.MakeRuntimeDirectory());
  RK_ASSIGN_OR_RETURN(criu::Installation criu, node.Criu());
  TemplateRecord record;
  record.name = request.name().empty() ? info.reference : request.name();
  record.image = info.reference;
  record.digest = info.digest;
  record.owner = call.caller.uid;
  RK_RETURN_IF_ERROR(node.templates().CheckNameIsFree(record.name));
  CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  restore::CloneOptions options;
  options.image = info.digest;
  options.cancel_fd = monitor.cancel_fd();
  options.caller = node.policy().IsAdmin(call.caller) ? 0 : call.caller.uid;
  RK_ASSIGN_OR_RETURN(StartedTemplate started, StartTemplate(node, *store, criu, options));
  record.instance = std::move(started.forks);
  monitor.Stop();
  CopyDetails details;
  details.name = CheckJobName(record.name).ok() ? record.name : "";
  details.image = info.reference;
  details.kind = "template";
  details.wait_for_answer = false;
  v1::JobStarted unused;
  RK_ASSIGN_OR_RETURN(RegisteredJob job, RegisterCopy(node, call.caller, std::move(started.sandbox), details,
                                                      watch, -1, &unused));
  record.job = job.record;
  record.seconds = watch.seconds();
  Describe(record, ProcessChildren(), response);
  if (!record.instance->refusal().empty()) {
    Log(LogLevel::kWarning,
        absl::StrCat("template '", record.name,
                     "' can't be forked, clones are made instead: ", record.instance->refusal()));
  }
  return node.templates().Add(std::move(record), call.cancelled);
}

absl::Status TemplateDown(Node& node, const Call& call, const v1::TemplateDownRequest& request,
                          v1::TemplateDownResponse*) {
  RK_RETURN_IF_ERROR(CheckDaemon(node));
  RK_RETURN_IF_ERROR(FindTemplateFor(node, call.caller, request.name()).status());
  return node.templates().Remove(request.name());
}

absl::Status ListTemplates(Node& node, const Call& call, const v1::ListTemplatesRequest&,
                           v1::ListTemplatesResponse* response) {
  RK_RETURN_IF_ERROR(CheckDaemon(node));
  const std::vector<TemplateRecord> templates = node.templates().List();
  const ProcessChildren all;
  for (const TemplateRecord& record : templates) {
    if (node.policy().MayUse(call.caller, record.owner)) Describe(record, all, response->add_templates());
  }
  return absl::OkStatus();
}

absl::Status StartFromTemplate(Node& node, const Call& call, const v1::StartFromTemplateRequest& request,
                               const EventSink<v1::JobEvent>& send) {
  RK_RETURN_IF_ERROR(CheckDaemon(node));
  RK_RETURN_IF_ERROR(CheckCloneOptions(node, call.caller, request.clone()));
  RK_ASSIGN_OR_RETURN(TemplateRecord record, FindTemplateFor(node, call.caller, request.template_()));
  store::ImageInfo info;
  info.digest = record.digest;
  info.reference = record.image;
  CallMonitor monitor(call, [](const v1::Progress&) { return true; });
  std::vector<RegisteredJob> jobs;
  const auto counted = [&node](const absl::Status& started) {
    node.counts().clones.Add(started);
    return started;
  };
  const uint32_t count = std::max<uint32_t>(request.clone().count(), 1);
  RK_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<void>> rooms, TakeRoomForJobs(node, call.caller, count));
  for (uint32_t i = 1; i <= count; ++i) {
    Stopwatch watch;
    CopyTimeline timeline(request.timeline());
    const restore::CloneOptions options =
        OptionsOfCopy(node, call.caller, request, info, count > 1 ? i : 0, monitor.cancel_fd());
    absl::StatusOr<restore::CloneResult> copy = record.instance->Fork(options);
    const bool forked = copy.ok();
    v1::JobEvent event;
    if (CannotFork(copy.status())) {
      const std::string why(copy.status().message());
      event.mutable_started()->add_warnings(absl::StrCat("a clone was made: ", why));
      copy = CloneInstead(node, record, options, why);
    } else if (!copy.ok() && record.instance->lost()) {
      return counted(HasEnded(record));
    }
    if (!copy.ok()) return counted(copy.status());
    timeline.Started(&*copy);
    WarnOfEnvironment(request.clone(), copy->channel.valid(), event.mutable_started());
    const UniqueFd root = std::move(copy->root_pidfd);
    const UniqueFd init(::fcntl(copy->sandbox.init.get(), F_DUPFD_CLOEXEC, 0));
    CopyDetails details;
    details.name = options.name;
    details.image = record.image;
    details.kind = "clone";
    absl::StatusOr<RegisteredJob> job = RegisterCopy(node, call.caller, *std::move(copy), details, watch,
                                                     monitor.cancel_fd(), event.mutable_started());
    rooms[i - 1].reset();
    RK_RETURN_IF_ERROR(counted(job.status()));
    event.mutable_started()->set_forked(forked);
    if (count > 1) event.mutable_started()->set_number(i);
    if (forked && event.started().ready_seconds() > 0) record.instance->HasAnswered(root, options);
    if (auto store = node.OpenStore(Node::Access::kRead); !forked && store.ok())
      EndRecordingOf(node, **store, event.started());
    node.templates().CountCopy(record.name);
    RK_RETURN_IF_ERROR(TellOrEnd(event, init.get(), send));
    if (auto followed = timeline.Finish(event.started())) send(*followed);
    jobs.push_back(*std::move(job));
  }
  rooms.clear();
  monitor.Stop();
  if (request.detach()) return absl::OkStatus();
  return SendJobEnds(node, call, jobs, send);
}

}  // namespace rekindle::daemon
