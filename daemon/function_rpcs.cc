#include "daemon/function_rpcs.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/timed_await.h"
#include "base/utf8.h"
#include "daemon/call_monitor.h"
#include "daemon/functions.h"
#include "functions/function_spec.h"
#include "functions/json_text.h"
#include "functions/request_id.h"

namespace rekindle::daemon {
namespace {

void Describe(Functions& functions, const functions::FunctionRecord& record, v1::Function* out) {
  *out->mutable_spec() = functions::ToProto(record.spec);
  out->set_owner_uid(record.owner.uid);
  out->set_revision(record.revision);
  out->set_code_sha256(record.code_sha256);
  out->set_code_bytes(record.code_bytes);
  out->set_deployed_unix_ns(record.deployed_unix_ns);
  out->set_dependency_image(record.images.dependency_image);
  out->set_function_image(record.images.function_image);
  for (const std::string& module : record.images.dependencies) out->add_dependencies(module);
  out->mutable_layers()->Assign(record.layers.begin(), record.layers.end());
  if (!record.trouble.ok()) {
    out->set_state(absl::IsDataLoss(record.trouble)             ? "damaged"
                   : absl::IsFailedPrecondition(record.trouble) ? "newer"
                                                                : "unreadable");
    out->set_problem(ToUtf8(record.trouble.message()));
    return;
  }
  auto numbers = functions.Numbers(record.name());
  out->set_state(numbers.ok() ? "ready" : "deploying");
  if (!numbers.ok()) return;
  // A function's own words may be in them.
  const std::string& failure = record.images.load_failure;
  const std::string alone = functions.OnlyAlone(record);
  const bool serves = numbers->busy + numbers->idle > 0;
  const std::string& in_the_way = failure.empty() ? alone : failure;
  if (serves && record.spec.max_instances != 1 && IsInAnothersWay(in_the_way)) {
    out->set_problem(absl::StrCat("one serves, and a second could not be loaded beside it (",
                                  WhyAlone(record.spec), "): ", in_the_way));
  } else if (!failure.empty()) {
    if (!serves) out->set_state("unloadable");
    out->set_problem(absl::StrCat("its handler could not be loaded when that was last tried: ", failure));
  } else {
    out->set_problem(ToUtf8(numbers->problem));
  }
  out->set_instances_busy(numbers->busy);
  out->set_instances_idle(numbers->idle);
  out->set_invocations(numbers->invocations);
}

functions::Call CallFrom(const v1::InvokeFunctionRequest& request) {
  functions::Call call;
  call.function = request.name();
  call.payload = request.payload().empty() ? "{}" : request.payload();
  call.client_context = request.client_context();
  call.dry_run = request.dry_run();
  return call;
}

}  // namespace

namespace {

using Progress = std::function<void(const char* phase, uint64_t bytes)>;

// `deploy` does it; what comes of it is sent.
absl::Status TellOfDeployment(
    Functions& functions, const Call& call, const EventSink<v1::DeployEvent>& send,
    const std::function<absl::StatusOr<Functions::DeployResult>(const Progress&, const Cancellation*)>&
        deploy) {
  Stopwatch watch;
  CallMonitor monitor(call, [&](const v1::Progress& progress) {
    v1::DeployEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  auto deployed =
      deploy([&](const char* phase, uint64_t bytes) { monitor.Report(phase, bytes, 0, watch.seconds()); },
             &monitor.cancellation());
  monitor.Stop();
  RK_RETURN_IF_ERROR(deployed.status());
  v1::DeployEvent event;
  Describe(functions, deployed->record, event.mutable_result());
  event.set_unchanged(deployed->unchanged);
  event.set_seconds(watch.seconds());
  for (const std::string& warning : deployed->warnings) event.add_warnings(warning);
  send(event);
  return absl::OkStatus();
}

// What `request` does not give stays. InvalidArgument: a variable that is to be removed is not there.
absl::Status ChangeSettings(const v1::SetFunctionRequest& request, v1::FunctionSpec* spec) {
  if (request.has_memory_bytes()) spec->set_memory_bytes(request.memory_bytes());
  if (request.has_timeout_ms()) spec->set_timeout_ms(request.timeout_ms());
  if (request.has_start_timeout_ms()) spec->set_start_timeout_ms(request.start_timeout_ms());
  if (request.has_provisioned()) spec->set_provisioned(request.provisioned());
  if (request.has_max_instances()) spec->set_max_instances(request.max_instances());
  if (request.has_cpus()) spec->set_cpus(request.cpus());
  if (request.has_network()) spec->set_network(request.network());
  if (request.has_description()) spec->set_description(request.description());
  if (request.has_code()) spec->set_code(request.code());
  if (request.no_layers()) {
    spec->clear_layers();
    spec->clear_venv();
  }
  if (!request.layers().empty()) *spec->mutable_layers() = request.layers();
  if (request.has_venv()) spec->set_venv(request.venv());
  for (const std::string& variable : request.remove_environment()) {
    if (spec->mutable_environment()->erase(variable) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("function '", spec->name(), "' has no variable '",
                                                     variable, "' that could be removed"));
    }
  }
  for (const auto& [variable, value] : request.environment())
    (*spec->mutable_environment())[variable] = value;
  return absl::OkStatus();
}

// What a default would be it may be without, not what somebody relies on.
absl::Status CheckLimitsUsable(const std::string& function) {
  return Annotate(
      FunctionInstances::LimitsUsable(),
      absl::StrCat("function '", function,
                   "': its memory and CPUs can't be limited here (without --memory and --cpus it is "
                   "deployed without limits)"));
}

}  // namespace

absl::Status DeployFunction(Node& node, const Call& call, const v1::DeployFunctionRequest& request,
                            const EventSink<v1::DeployEvent>& send) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  RK_ASSIGN_OR_RETURN(functions::FunctionSpec spec, functions::FunctionSpecFrom(request.spec()));
  if (request.spec().memory_bytes() != 0 || request.spec().cpus() != 0)
    RK_RETURN_IF_ERROR(CheckLimitsUsable(spec.name));
  return TellOfDeployment(*functions, call, send, [&](const Progress& progress, const Cancellation* cancel) {
    return functions->Deploy(call.caller, spec, request.replace(), request.force(), progress, cancel);
  });
}

absl::Status SetFunction(Node& node, const Call& call, const v1::SetFunctionRequest& request,
                         const EventSink<v1::DeployEvent>& send) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  RK_ASSIGN_OR_RETURN(const functions::FunctionRecord record,
                      functions->Find(call.caller, request.name(), "change"));
  v1::FunctionSpec wanted = functions::ToProto(record.spec);
  RK_RETURN_IF_ERROR(ChangeSettings(request, &wanted));
  RK_ASSIGN_OR_RETURN(const functions::FunctionSpec spec, functions::FunctionSpecFrom(wanted));
  if (request.memory_bytes() != 0 || request.cpus() != 0) RK_RETURN_IF_ERROR(CheckLimitsUsable(spec.name));
  // With other code its layers are copied again, as by a deployment.
  const bool code = request.has_code();
  const functions::NewParts parts{code, code || !request.layers().empty(), code || !request.venv().empty()};
  if ((parts.code || parts.layers || parts.venv) && call.caller.kind == Caller::Kind::kRemote &&
      !call.caller.admin_certificate) {
    return absl::PermissionDeniedError(
        "code and layers are given to a function on the node itself, or with an administrator's certificate: "
        "they are folders of the node");
  }
  return TellOfDeployment(*functions, call, send, [&](const Progress& progress, const Cancellation* cancel) {
    return functions->Set(record, spec, parts, request.force(), progress, cancel);
  });
}

absl::Status InvokeFunction(Node& node, const Call& call, const v1::InvokeFunctionRequest& request,
                            v1::InvokeFunctionResponse* response) {
  // What has not begun may be had from another daemon at once.
  RK_RETURN_IF_ERROR(node.CheckTakesWork());
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  const size_t most = request.async() ? functions::kLargestAsyncPayload : functions::kLargestPayload;
  if (request.payload().size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("the payload has ", request.payload().size(),
                                                   " bytes, and at most ", most, " are taken"));
  }
  functions::Call invocation = CallFrom(request);
  RK_RETURN_IF_ERROR(
      Annotate(functions::CheckJson(invocation.payload), "the payload of an invocation must be JSON"));
  if (!invocation.client_context.empty()) {
    if (invocation.client_context.size() > functions::kLargestClientContext) {
      return absl::InvalidArgumentError(absl::StrCat("the client context has ",
                                                     invocation.client_context.size(), " bytes, and at most ",
                                                     functions::kLargestClientContext, " are taken"));
    }
    RK_RETURN_IF_ERROR(Annotate(functions::CheckJson(invocation.client_context),
                                "the client context of an invocation must be JSON"));
  }
  invocation.request_id = functions::NewRequestId();
  response->set_request_id(invocation.request_id);
  response->set_executed_version("$LATEST");
  if (request.async() && !request.dry_run()) return functions->CallLater(call.caller, std::move(invocation));
  // The caller may leave before the answer is there.
  struct Answered {
    std::atomic<bool> gone{false};
    absl::Mutex mutex;
    bool done ABSL_GUARDED_BY(mutex) = false;
    absl::StatusOr<functions::CallResult> result ABSL_GUARDED_BY(mutex);
  };
  auto answered = std::make_shared<Answered>();
  invocation.gone = [answered] { return answered->gone.load(); };
  functions->Call(call.caller, std::move(invocation),
                  [answered](absl::StatusOr<functions::CallResult> result) {
                    absl::MutexLock lock(&answered->mutex);
                    answered->result = std::move(result);
                    answered->done = true;
                  });
  absl::MutexLock lock(&answered->mutex);
  while (!AwaitUntil(answered->mutex, absl::Condition(&answered->done),
                     Deadline(CallMonitor::kCancelInterval))) {
    if (!call.cancelled || !call.cancelled()) continue;
    answered->gone = true;
    if (node.stopping())
      return absl::AbortedError("rekindled ends; its invocation was cut off if it had begun");
    return absl::CancelledError("the caller has gone; its invocation goes on if it has begun");
  }
  absl::StatusOr<functions::CallResult>& result = answered->result;
  // Unavailable would mean that it has not begun.
  if (absl::IsUnavailable(result.status())) return absl::AbortedError(result.status().message());
  RK_RETURN_IF_ERROR(result.status());
  response->set_payload(std::move(result->payload));
  response->set_function_error(result->function_error);
  if (request.tail_log()) response->set_log_tail(result->log_tail);
  response->set_start_level(functions::NameOf(result->level));
  response->set_duration_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_start_seconds(
      result->level == functions::StartLevel::kInstance ? 0 : absl::ToDoubleSeconds(result->start));
  response->set_instance(result->instance);
  return absl::OkStatus();
}

absl::Status ListFunctions(Node& node, const Call& call, const v1::ListFunctionsRequest&,
                           v1::ListFunctionsResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  for (const functions::FunctionRecord& record : functions->Records(call.caller)) {
    Describe(*functions, record, response->add_functions());
  }
  return absl::OkStatus();
}

absl::Status RemoveFunction(Node& node, const Call& call, const v1::RemoveFunctionRequest& request,
                            v1::RemoveFunctionResponse*) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  return functions->Remove(call.caller, request.name());
}

absl::Status FunctionLogs(Node& node, const Call& call, const v1::FunctionLogsRequest& request,
                          const EventSink<v1::FunctionLogLine>& send) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  RK_ASSIGN_OR_RETURN(functions::FunctionRecord record,
                      functions->Find(call.caller, request.name(), "read the logs of"));
  functions::LogReadOptions options;
  if (request.has_tail_lines()) options.tail_lines = request.tail_lines();
  options.since_unix_ns = request.since_unix_ns();
  options.follow = request.follow();
  options.owner = record.owner.uid;
  options.stop = [&node, &call] { return node.stopping() || call.IsCancelled(); };
  RK_RETURN_IF_ERROR(functions->logs().Read(request.name(), options, [&send](const functions::LogLine& line) {
    v1::FunctionLogLine out;
    out.set_instance(std::string(line.instance));
    out.set_text(std::string(line.text));
    out.set_unix_ns(line.unix_ns);
    return send(out);
  }));
  // Else it would look as if the function had been removed.
  if (request.follow() && node.stopping() && functions->Find(call.caller, request.name(), "").ok())
    return absl::UnavailableError("rekindled ends, and with it what follows the log; the function stays");
  return absl::OkStatus();
}

absl::Status FunctionStats(Node& node, const Call& call, const v1::FunctionStatsRequest& request,
                           v1::FunctionStatsResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  std::vector<functions::FunctionRecord> records;
  if (request.name().empty()) {
    records = functions->Records(call.caller);
    const Functions::Refusals refused = functions->refusals();
    v1::FunctionRefusals* out = response->mutable_refused();
    out->set_connections(refused.http.connections);
    out->set_connections_of_one(refused.http.connections_of_one);
    out->set_bodies(refused.http.bodies);
    out->set_bodies_of_one(refused.http.bodies_of_one);
    out->set_too_large(refused.http.too_large);
    out->set_events(refused.events);
    out->set_events_of_one(refused.events_of_one);
  } else {
    RK_ASSIGN_OR_RETURN(functions::FunctionRecord record,
                        functions->Find(call.caller, request.name(), "see the numbers of"));
    records.push_back(std::move(record));
  }
  auto store = node.OpenStore(Node::Access::kRead);
  for (const functions::FunctionRecord& record : records) {
    auto numbers = functions->Numbers(record.name());
    if (!numbers.ok()) continue;
    v1::FunctionStats* out = response->add_functions();
    out->set_name(record.name());
    out->set_owner_uid(record.owner.uid);
    out->set_invocations(numbers->invocations);
    out->set_errors(numbers->errors);
    out->set_timeouts(numbers->timeouts);
    out->set_throttles(numbers->throttles);
    for (const functions::StartNumbers& starts : numbers->starts) {
      v1::FunctionStarts* entry = out->add_starts();
      entry->set_level(functions::NameOf(starts.level));
      entry->set_count(starts.count);
      entry->set_median_seconds(starts.median_seconds);
      entry->set_p99_seconds(starts.p99_seconds);
    }
    out->set_instances_busy(numbers->busy);
    out->set_instances_idle(numbers->idle);
    out->set_memory_bytes(numbers->memory_bytes);
    out->set_queued(numbers->queued);
    out->set_duration_median_seconds(numbers->duration_median_seconds);
    out->set_duration_p99_seconds(numbers->duration_p99_seconds);
    if (!store.ok() || record.images.function_image.empty()) continue;
    if (auto info = (*store)->Find(record.images.function_image); info.ok()) {
      out->set_image_unique_bytes(store::QuotaBytes(info->stats));
    }
  }
  return absl::OkStatus();
}

namespace {

// `all`: every function of the node, of which the caller is told those that are for its eyes.
void Describe(const Node& node, const Caller& caller, const std::vector<functions::FunctionRecord>& all,
              const DependencyImage& image, v1::DependencyImage* out) {
  out->set_reference(image.info.reference);
  out->set_runtime(image.runtime.Name());
  for (const std::string& module : image.modules) out->add_modules(module);
  out->set_resident_bytes(image.resident_bytes);
  out->set_stored_bytes(image.info.stats.logical_bytes);
  out->set_unique_bytes(store::QuotaBytes(image.info.stats));
  out->set_built_unix_ns(image.info.created_unix_ns);
  out->set_build_seconds(image.build_seconds);
  out->set_owner_uid(image.info.owner);
  out->mutable_layers()->Assign(image.layers.begin(), image.layers.end());
  uint32_t others = 0;
  for (const functions::FunctionRecord& record : all) {
    if (record.images.dependency_image != image.info.reference) continue;
    if (node.policy().MayUse(caller, record.owner.uid)) {
      out->add_used_by(record.name());
    } else {
      ++others;
    }
  }
  out->set_used_by_others(others);
}

}  // namespace

absl::Status BuildDependencies(Node& node, const Call& call, const v1::BuildDependenciesRequest& request,
                               const EventSink<v1::BuildDependenciesEvent>& send) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  RK_ASSIGN_OR_RETURN(functions::Runtime runtime, functions::ParseRuntime(request.runtime()));
  const std::vector<std::string> modules(request.modules().begin(), request.modules().end());
  for (const std::string& module : modules)
    RK_RETURN_IF_ERROR(functions::CheckDependency(runtime.kind, module));
  RK_ASSIGN_OR_RETURN(const functions::LayerNames layers,
                      functions::CheckLayers({request.layers().begin(), request.layers().end()},
                                             request.venv(), runtime.kind));
  Stopwatch watch;
  CallMonitor monitor(call, [&](const v1::Progress& progress) {
    v1::BuildDependenciesEvent event;
    *event.mutable_progress() = progress;
    return send(event);
  });
  auto built = functions->BuildDependencies(
      call.caller, runtime, modules, layers, request.rebuild(),
      [&](const char* phase, uint64_t bytes) { monitor.Report(phase, bytes, 0, watch.seconds()); },
      &monitor.cancellation());
  monitor.Stop();
  RK_RETURN_IF_ERROR(built.status());
  v1::BuildDependenciesEvent event;
  Describe(node, call.caller, functions->Records(Caller()), built->image, event.mutable_result());
  event.set_unchanged(built->unchanged);
  if (const DependencyImage& image = built->image; !image.drawn.empty())
    event.add_warnings(WarnOfDrawnIn(image.info.reference, image.drawn));
  send(event);
  return absl::OkStatus();
}

absl::Status ListDependencies(Node& node, const Call& call, const v1::ListDependenciesRequest&,
                              v1::ListDependenciesResponse* response) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  RK_ASSIGN_OR_RETURN(std::vector<DependencyImage> images, functions->dependencies().List());
  const std::vector<functions::FunctionRecord> all = functions->Records(Caller());
  for (const DependencyImage& image : images) {
    if (image.is_shared() || node.policy().MayUse(call.caller, image.info.owner))
      Describe(node, call.caller, all, image, response->add_images());
  }
  return absl::OkStatus();
}

absl::Status RemoveDependencies(Node& node, const Call& call, const v1::RemoveDependenciesRequest& request,
                                v1::RemoveDependenciesResponse*) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<Functions> functions, node.functions());
  absl::StatusOr<DependencyImage> found = functions->dependencies().Find(request.reference());
  // First: what is found, and what is not, tells of others' images.
  if (!node.policy().IsAdmin(call.caller) &&
      (!found.ok() || found->is_shared() || found->info.owner != call.caller.uid)) {
    return absl::PermissionDeniedError(
        "dependency images are shared by all users: only an administrator removes those that have no modules "
        "of one's own layers");
  }
  RK_RETURN_IF_ERROR(found.status());
  const DependencyImage& image = *found;
  v1::DependencyImage described;
  Describe(node, Caller(), functions->Records(Caller()), image, &described);
  if (described.used_by_size() > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "dependency image '", image.info.reference, "' is used by function '", described.used_by(0), "'",
        described.used_by_size() > 1 ? " and others" : "", ": remove those first"));
  }
  RK_RETURN_IF_ERROR(functions->RemoveDependencies(image.info));
  if (!image.is_shared()) functions->TidyLayers();
  return absl::OkStatus();
}

}  // namespace rekindle::daemon
