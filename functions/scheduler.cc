#include "functions/scheduler.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "functions/scheduler_core.h"
#include "functions/scheduler_errors.h"
#include "functions/scheduler_instance.h"

namespace rekindle::functions {
namespace {

// What one instance takes beside what it shares, before the first was measured.
constexpr uint64_t kGuessedInstanceBytes = 32u << 20;
// Milliseconds, before anything was measured.
constexpr double kWarmMs = 0.5, kTemplateMs = 8, kDependencyTemplateMs = 15, kImageMs = 20, kImageReadMs = 60,
                 kDependencyMs = 40;
constexpr int kMakers = 2;

std::chrono::nanoseconds Nanos(absl::Duration duration) { return absl::ToChronoNanoseconds(duration); }

}  // namespace

const char* NameOf(StartLevel level) {
  switch (level) {
    case StartLevel::kInstance:
      return "running";
    case StartLevel::kTemplate:
      return "template";
    case StartLevel::kDependencyTemplate:
      return "dependency-template";
    case StartLevel::kImageRam:
      return "image-memory";
    case StartLevel::kImageDisk:
      return "image-disk";
    case StartLevel::kDependencyRam:
      return "dependency-memory";
    case StartLevel::kDependencyDisk:
      return "dependency-disk";
    case StartLevel::kCold:
      break;
  }
  return "cold";
}

Scheduler::Scheduler(const SchedulerOptions& options, InstanceStarter& starter, HttpThreads& threads)
    : core_(std::make_shared<Core>(options, starter, threads)) {}
Scheduler::~Scheduler() { core_->Stop(); }
void Scheduler::Put(const ScheduledFunction& function) { core_->Put(function); }
void Scheduler::Remove(const std::string& name) { core_->Remove(name); }
void Scheduler::Invoke(Call call, Done done) { core_->Invoke(std::move(call), std::move(done)); }
absl::StatusOr<FunctionNumbers> Scheduler::Numbers(const std::string& name) const {
  return core_->Numbers(name);
}

using Core = Scheduler::Core;

Core::Core(const SchedulerOptions& options, InstanceStarter& starter, HttpThreads& threads)
    : options_(options),
      starter_(starter),
      threads_(threads),
      epoch_(absl::Now()),
      context_(threads.context()),
      starts_(static_cast<size_t>(options.start_threads)),
      makers_(kMakers),
      policy_(options.keep_alive),
      tick_(*context_) {}

void Core::Stop() {
  std::vector<RequestPtr> unserved;
  std::vector<InstancePtr> instances;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    tick_.cancel();
    auto give_up = [&unserved](Function& function) {
      function.replaced = true;
      for (auto* queue : {&function.queue, &function.waiting}) {
        unserved.insert(unserved.end(), queue->begin(), queue->end());
        queue->clear();
      }
    };
    for (auto& [name, function] : functions_) give_up(*function);
    for (const InstancePtr& instance : instances_) give_up(*instance->function);  // older revisions
    instances.assign(instances_.begin(), instances_.end());
    for (const InstancePtr& instance : instances) {
      instance->state = Instance::State::kEnding;
      instance->timer.cancel();
      if (instance->current) unserved.push_back(std::exchange(instance->current, nullptr));
      if (instance->api) instance->api->Close();
      if (instance->process) instance->process->Kill();
    }
  }
  for (const RequestPtr& request : unserved) {
    request->done(absl::UnavailableError("the daemon is ending"));
  }
  starts_.join();
  makers_.join();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](std::set<InstancePtr>* left) { return left->empty(); }, &instances_));
}

Micros Core::Now() const { return absl::ToInt64Microseconds(absl::Now() - epoch_); }

Core::FunctionPtr Core::Find(const std::string& name) const {
  auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second;
}

DependencyId Core::DependencyOf(const ScheduledFunction& function, Later* later) {
  for (const Dependency& dependency : dependencies_) {
    if (dependency.image == function.dependency_image) return dependency.id;
  }
  std::vector<Action> actions;
  DependencyProfile profile;
  profile.template_bytes = function.dependency_bytes;
  profile.make_template_ms = 1000;
  Dependency dependency;
  dependency.image = function.dependency_image;
  dependency.id = policy_.AddDependency(profile, Now(), &actions);
  dependencies_.push_back(std::move(dependency));
  Apply(actions, later);
  return dependencies_.back().id;
}

void Core::Put(const ScheduledFunction& spec) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  if (FunctionPtr old = Find(spec.name)) Retire(old, &later);
  auto function = std::make_shared<Function>();
  function->spec = spec;
  function->has_image = spec.has_image;
  auto& counters = counters_[spec.name];
  if (counters == nullptr) counters = std::make_shared<Counters>();
  function->counters = counters;
  FunctionProfile& profile = function->profile;
  profile.dependency = DependencyOf(spec, &later);
  profile.instance_bytes = kGuessedInstanceBytes;
  profile.template_bytes = kGuessedInstanceBytes;
  profile.provisioned = spec.provisioned;
  profile.warm_ms = kWarmMs;
  profile.cold_ms = spec.cold_seconds * 1e3;
  // A level that this function does not have must not look quick.
  const bool depends = !spec.dependency_image.empty();
  profile.dependency_image_ms = depends ? kDependencyMs : profile.cold_ms;
  profile.dependency_template_ms = depends ? kDependencyTemplateMs : profile.cold_ms;
  profile.image_ms = spec.may_have_image ? kImageMs : profile.cold_ms;
  profile.image_read_ms = spec.may_have_image ? kImageReadMs : 0;
  profile.template_ms = spec.may_have_image ? kTemplateMs : profile.cold_ms;
  std::vector<Action> actions;
  function->id = policy_.AddFunction(profile, Now(), &actions);
  by_id_.resize(std::max<size_t>(by_id_.size(), function->id + 1));
  by_id_[function->id] = function;
  functions_[spec.name] = function;
  Apply(actions, &later);
  PlanTick();
}

void Core::Remove(const std::string& name) {
  Later later;
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(name);
  if (function == nullptr) return;
  functions_.erase(name);
  Retire(function, &later);
  for (auto* queue : {&function->queue, &function->waiting}) {
    for (const RequestPtr& request : *queue) {
      later.steps.emplace_back([request, name] {
        request->done(absl::NotFoundError(absl::StrCat("function '", name, "' was removed meanwhile")));
      });
    }
    queue->clear();
  }
  counters_.erase(name);
}

// Its calls under way and those that instances are being started for end with it.
void Core::Retire(const FunctionPtr& function, Later* later) {
  function->replaced = true;
  std::vector<Action> actions;
  policy_.RemoveFunction(function->id, &actions);
  // Templates of it, say; its instances go below, all of them.
  std::erase_if(actions, [](const Action& action) { return action.thing.kind == ThingKind::kInstance; });
  Apply(actions, later);
  for (const InstancePtr& instance : std::exchange(function->idle, {})) EndInstance(instance);
  if (FunctionPtr successor = Find(function->spec.name); successor != nullptr && successor != function) {
    successor->waiting = std::exchange(function->waiting, {});
  }
}

bool Core::MayStart(const Function& function) const {
  const uint32_t most = function.spec.most_instances;
  return (most == 0 || function.counters->living < most) && instances_.size() < options_.most_instances;
}

void Core::Invoke(Call call, Done done) {
  Later later;
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(call.function);
  if (function == nullptr || stopping_) {
    absl::Status status =
        stopping_ ? absl::UnavailableError("the daemon is ending")
                  : absl::NotFoundError(absl::StrCat("there is no function '", call.function,
                                                     "': 'rekindle fn ls' lists those there are"));
    later.steps.emplace_back([done = std::move(done), status] { done(status); });
    return;
  }
  if (call.dry_run) {
    later.steps.emplace_back([done = std::move(done)] { done(CallResult()); });
    return;
  }
  auto request = std::make_shared<Request>();
  request->call = std::move(call);
  request->done = std::move(done);
  request->arrived = absl::Now();
  // One that is being started for nobody any more, or ahead of time, will do.
  const bool one_comes = function->starting > function->queue.size() + function->waiting.size();
  if (function->idle.empty() && (one_comes || !MayStart(*function))) {
    if (function->waiting.size() + function->queue.size() >= options_.longest_queue) {
      ++function->counters->throttles;
      later.steps.emplace_back([request] {
        request->done(absl::ResourceExhaustedError(
            absl::StrCat("Rate Exceeded: function '", request->call.function,
                         "' has as many instances as it may, and its queue is full")));
      });
      return;
    }
    request->waited = true;
    function->waiting.push_back(std::move(request));
    return;
  }
  ++function->counters->invocations;
  Dispatch(function, std::move(request), &later);
}

void Core::Dispatch(const FunctionPtr& function, RequestPtr request, Later* later) {
  std::vector<Action> actions;
  const StartDecision decision = policy_.Arrived(function->id, Now(), &actions);
  if (!function->idle.empty()) {
    InstancePtr instance = function->idle.back();
    function->idle.pop_back();
    Assign(function, instance, request, later);
  } else {
    function->queue.push_back(std::move(request));
    BeginStart(function, decision.level);
  }
  Apply(actions, later);
  PlanTick();
}

std::vector<StartLevel> Core::LevelsFrom(const Function& function, StartLevel level) const {
  bool dependency_template = false;
  for (const Dependency& dependency : dependencies_) {
    if (dependency.image == function.spec.dependency_image) dependency_template = dependency.has_template;
  }
  const bool depends = !function.spec.dependency_image.empty();
  const bool ram = level != StartLevel::kImageDisk && level != StartLevel::kDependencyDisk;
  std::vector<StartLevel> levels;
  auto add = [&](StartLevel candidate, bool available) {
    if (available) levels.push_back(candidate);
  };
  // The decision counts where what it is about is there; what else is there is tried in the usual order.
  add(StartLevel::kTemplate, function.has_template);
  add(StartLevel::kDependencyTemplate,
      level == StartLevel::kDependencyTemplate && dependency_template && depends);
  add(ram ? StartLevel::kImageRam : StartLevel::kImageDisk, function.has_image);
  add(StartLevel::kDependencyTemplate,
      level != StartLevel::kDependencyTemplate && dependency_template && depends);
  add(ram ? StartLevel::kDependencyRam : StartLevel::kDependencyDisk, depends);
  add(StartLevel::kCold, true);
  return levels;
}

void Core::BeginStart(const FunctionPtr& function, StartLevel level) {
  auto instance = std::make_shared<Instance>(
      weak_from_this(), function,
      absl::StrCat(function->spec.name, "-", absl::ToUnixSeconds(epoch_), "-", ++started_), *context_);
  instance->ordered = absl::Now();
  ++function->starting;
  ++function->counters->living;
  function->instances.insert(instance);
  instances_.insert(instance);
  // With the lock, so that Stop waits for it.
  boost::asio::post(starts_, [core = shared_from_this(), function, instance, level] {
    core->Start(function, instance, level);
  });
}

void Core::Start(const FunctionPtr& function, const InstancePtr& instance, StartLevel level) {
  std::vector<StartLevel> levels;
  {
    absl::MutexLock lock(&mutex_);
    levels = LevelsFrom(*function, level);
  }
  StartOrder order;
  order.function = function->spec.name;
  order.revision = function->spec.revision;
  order.instance = instance->id;
  order.on_end = [weak = weak_from_this(), instance](const InstanceEnd& end) {
    if (auto core = weak.lock()) core->OnEnd(instance, end);
  };
  absl::StatusOr<StartedInstance> started = absl::NotFoundError("nothing to start from");
  for (StartLevel candidate : levels) {
    order.level = candidate;
    started = starter_.Start(order);
    if (started.ok()) break;
    if (candidate == StartLevel::kCold) break;
    if (!absl::IsNotFound(started.status())) {
      Log(LogLevel::kWarning, absl::StrCat("function '", order.function, "' could not be started from ",
                                           NameOf(candidate), ": ", started.status().message()));
    }
  }
  Later later;
  absl::MutexLock lock(&mutex_);
  if (!started.ok()) return StartFailed(function, instance, started.status(), &later);
  instance->level = order.level;
  instance->process = std::move(started->process);
  RuntimeApi::Options options;
  options.may_connect = std::move(started->may_connect);
  // With the lock: it may ask for its first call at once, and must be whole by then.
  auto api = RuntimeApi::Start(threads_, std::move(started->listener), std::move(options), instance);
  if (!api.ok()) {
    instance->process->Kill();
    instance->state = Instance::State::kEnding;
    StartFailed(function, instance, api.status(), &later);
  } else {
    instance->api = *std::move(api);
  }
  if (instance->end) {
    const InstanceEnd end = *instance->end;
    later.steps.emplace_back([core = shared_from_this(), instance, end] { core->OnEnd(instance, end); });
    return;
  }
  if (!instance->api) return;
  if (instance->state == Instance::State::kEnding || stopping_) {
    instance->api->Close();
    instance->process->Kill();
    return;
  }
  instance->timer.expires_after(Nanos(options_.longest_start));
  instance->timer.async_wait([weak = weak_from_this(), instance](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->OnStartTimeout(instance);
  });
}

void Core::StartFailed(const FunctionPtr& function, const InstancePtr& instance, const absl::Status& why,
                       Later* later) {
  --function->starting;
  if (instance->process == nullptr) Forget(instance);
  if (!function->replaced) policy_.Ended(function->id);
  Log(LogLevel::kError,
      absl::StrCat("function '", function->spec.name, "' could not be started: ", why.message()));
  if (function->queue.empty()) return;
  RequestPtr request = function->queue.front();
  function->queue.pop_front();
  if (FunctionPtr successor = Find(function->spec.name); successor != nullptr && successor != function) {
    return Dispatch(successor, std::move(request), later);  // what it waited for was replaced
  }
  later->steps.emplace_back([request, why] {
    request->done(absl::UnavailableError(absl::StrCat("no instance of function '", request->call.function,
                                                      "' could be started: ", why.message())));
  });
  ServeWaiting(function, later);
}

void Core::OnReady(const InstancePtr& instance) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting) return;
  instance->timer.cancel();
  const FunctionPtr& function = instance->function;
  --function->starting;
  instance->start = absl::Now() - instance->ordered;
  LearnStart(function, instance->level, absl::ToDoubleSeconds(instance->start), &later);
  instance->state = Instance::State::kIdle;
  BecameFree(function, instance, &later);
}

void Core::BecameFree(const FunctionPtr& function, const InstancePtr& instance, Later* later) {
  if (!function->queue.empty()) {
    RequestPtr request = function->queue.front();
    function->queue.pop_front();
    Assign(function, instance, request, later);
    return;
  }
  if (function->replaced) return EndInstance(instance);
  if (!function->waiting.empty()) {
    RequestPtr request = function->waiting.front();
    function->waiting.pop_front();
    ++function->counters->invocations;
    std::vector<Action> actions;
    policy_.Arrived(function->id, Now(), &actions);
    Assign(function, instance, request, later);
    Apply(actions, later);
    return;
  }
  if (function->drops_owed > 0) {
    --function->drops_owed;
    return EndInstance(instance);
  }
  instance->state = Instance::State::kIdle;
  if (!instance->answered) instance->was_idle = true;
  function->idle.push_back(instance);
}

void Core::Assign(const FunctionPtr& function, const InstancePtr& instance, const RequestPtr& request,
                  Later* later) {
  instance->state = Instance::State::kBusy;
  instance->current = request;
  request->begun = absl::Now();
  const absl::Time deadline = request->begun + function->spec.timeout;
  Invocation invocation;
  invocation.request_id = request->call.request_id;
  invocation.payload = std::move(request->call.payload);
  invocation.deadline = deadline;
  invocation.function_arn = absl::StrCat(options_.arn_prefix, function->spec.name);
  invocation.trace_id = request->call.trace_id;
  invocation.client_context = request->call.client_context;
  instance->timer.expires_after(Nanos(function->spec.timeout));
  instance->timer.async_wait([weak = weak_from_this(), instance,
                              id = request->call.request_id](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->OnTimeout(instance, id);
  });
  // Without the lock, because a log may have to wait for its disk. In this order for whoever reads that.
  later->steps.emplace_back(
      [process = instance->process, api = instance->api, invocation = std::move(invocation)]() mutable {
        process->InvocationBegins(invocation.request_id);
        api->Invoke(std::move(invocation));
      });
}

void Core::OnAnswer(const InstancePtr& instance, const std::string& request_id, Answer answer) {
  const FunctionPtr& function = instance->function;
  CallResult result;
  result.payload = std::move(answer.body);
  result.content_type = std::move(answer.content_type);
  if (answer.failed) result.function_error = "Unhandled";
  std::shared_ptr<InstanceProcess> process;
  RequestPtr request;
  InvocationOutcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    if (instance->state != Instance::State::kBusy || instance->current == nullptr ||
        instance->current->call.request_id != request_id) {
      return;
    }
    if (answer.failed) ++function->counters->errors;
    instance->state = Instance::State::kAnswering;
    process = instance->process;
    request = Finish(instance, &result, &outcome);
  }
  // Before the next call can write to the same log.
  result.log_tail = process->InvocationEnds(outcome);
  const bool first = !outcome.was_there_before;
  const uint64_t memory = first ? process->MemoryBytes() : 0;
  Later later;
  absl::MutexLock lock(&mutex_);
  // The caller hears of it when the instance can take his next call.
  later.steps.emplace_back(
      [request, result = std::move(result)]() mutable { request->done(std::move(result)); });
  if (first) {
    later.steps.emplace_back([core = shared_from_this(), process] {
      boost::asio::post(core->makers_, [process] { process->HasAnswered(); });
    });
    if (!std::exchange(function->size_known, true) && !function->replaced) {
      function->profile.instance_bytes = std::max<uint64_t>(memory, 1u << 20);
      function->profile.template_bytes = function->profile.instance_bytes;
      std::vector<Action> actions;
      policy_.UpdateFunction(function->id, function->profile, Now(), &actions);
      Apply(actions, &later);
    }
  }
  if (instance->state != Instance::State::kAnswering) {
    // It has ended meanwhile.
    if (!function->replaced) policy_.Ended(function->id);
    return;
  }
  instance->state = Instance::State::kIdle;
  std::vector<Action> actions;
  if (!function->replaced) policy_.BecameIdle(function->id, Now(), &actions);
  BecameFree(function, instance, &later);
  Apply(actions, &later);
  PlanTick();
}

Core::RequestPtr Core::Finish(const InstancePtr& instance, CallResult* result, InvocationOutcome* outcome) {
  RequestPtr request = std::exchange(instance->current, nullptr);
  instance->timer.cancel();
  const bool first = !std::exchange(instance->answered, true);
  const bool was_there = !first || instance->was_idle;
  outcome->request_id = request->call.request_id;
  outcome->duration = absl::Now() - request->begun;
  outcome->was_there_before = !first;
  if (!was_there) outcome->start = instance->start;
  instance->function->counters->durations.Add(absl::ToDoubleSeconds(outcome->duration));
  result->instance = instance->id;
  result->level = was_there ? StartLevel::kInstance : instance->level;
  result->duration = outcome->duration;
  result->start = request->begun - request->arrived;
  return request;
}

void Core::FinishBadly(const InstancePtr& instance, std::string error_json, std::string problem,
                       bool timed_out, Later* later) {
  ++instance->function->counters->errors;
  CallResult result;
  result.function_error = "Unhandled";
  result.payload = std::move(error_json);
  InvocationOutcome outcome;
  RequestPtr request = Finish(instance, &result, &outcome);
  outcome.problem = std::move(problem);
  outcome.timed_out = timed_out;
  later->steps.emplace_back([process = instance->process, request, result = std::move(result),
                             outcome = std::move(outcome)]() mutable {
    result.log_tail = process->InvocationEnds(outcome);
    request->done(std::move(result));
  });
}

void Core::OnTimeout(const InstancePtr& instance, const std::string& request_id) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kBusy || instance->current == nullptr ||
      instance->current->call.request_id != request_id) {
    return;
  }
  const FunctionPtr& function = instance->function;
  ++function->counters->timeouts;
  FinishBadly(instance, TimedOutError(request_id, function->spec.timeout),
              TimedOutText(function->spec.timeout),
              /*timed_out=*/true, &later);
  if (!function->replaced) policy_.Ended(function->id);
  EndInstance(instance);
  ServeWaiting(function, &later);
}

void Core::OnStartTimeout(const InstancePtr& instance) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting) return;
  const FunctionPtr& function = instance->function;
  --function->starting;
  if (!instance->init_failed) FailOldest(function, StartTimedOutError(options_.longest_start), &later);
  if (!function->replaced) policy_.Ended(function->id);
  EndInstance(instance);
  ServeWaiting(function, &later);
}

void Core::OnInitError(const InstancePtr& instance, const std::string& body) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting || std::exchange(instance->init_failed, true)) return;
  FailOldest(instance->function, body, &later);
}

void Core::FailOldest(const FunctionPtr& function, const std::string& error_json, Later* later) {
  ++function->counters->errors;
  if (function->queue.empty()) {
    function->counters->problem = error_json;
    return;
  }
  RequestPtr request = function->queue.front();
  function->queue.pop_front();
  CallResult result;
  result.function_error = "Unhandled";
  result.payload = error_json;
  result.start = absl::Now() - request->arrived;
  later->steps.emplace_back([request, result] { request->done(result); });
}

void Core::OnEnd(const InstancePtr& instance, const InstanceEnd& end) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->process == nullptr) {
    instance->end = end;
    return;
  }
  const FunctionPtr& function = instance->function;
  const Instance::State state = std::exchange(instance->state, Instance::State::kEnding);
  instance->timer.cancel();
  switch (state) {
    case Instance::State::kStarting:
      --function->starting;
      if (!instance->init_failed)
        FailOldest(function, ExitError("", end, function->spec.memory_bytes), &later);
      if (!function->replaced) policy_.Ended(function->id);
      break;
    case Instance::State::kBusy: {
      const std::string id = instance->current->call.request_id;
      FinishBadly(instance, ExitError(id, end, function->spec.memory_bytes), ExitText(end),
                  /*timed_out=*/false, &later);
      if (!function->replaced) policy_.Ended(function->id);
      break;
    }
    case Instance::State::kIdle:
      std::erase(function->idle, instance);
      if (!function->replaced) policy_.Lost({ThingKind::kInstance, function->id});
      break;
    case Instance::State::kAnswering:
    case Instance::State::kEnding:
      break;
  }
  if (instance->api) instance->api->Close();
  // What it leaves behind is cleared away by somebody who may wait.
  auto clear = [core = shared_from_this(), process = std::exchange(instance->process, nullptr),
                instance]() mutable {
    process.reset();
    absl::MutexLock ended(&core->mutex_);
    core->Forget(instance);
  };
  if (stopping_) {
    later.steps.emplace_back(std::move(clear));
  } else {
    boost::asio::post(makers_, std::move(clear));  // with the lock, so that Stop waits for it
  }
  ServeWaiting(function, &later);
}

void Core::Forget(const InstancePtr& instance) {
  if (instances_.erase(instance) == 0) return;
  instance->function->instances.erase(instance);
  --instance->function->counters->living;
}

void Core::EndInstance(const InstancePtr& instance) {
  instance->state = Instance::State::kEnding;
  instance->timer.cancel();
  if (instance->api) instance->api->Close();
  if (instance->process) instance->process->Kill();
}

void Core::ServeWaiting(const FunctionPtr& function, Later* later) {
  FunctionPtr current = Find(function->spec.name);
  if (current == nullptr) return;
  while (!current->waiting.empty() && MayStart(*current)) {
    RequestPtr request = current->waiting.front();
    current->waiting.pop_front();
    ++current->counters->invocations;
    Dispatch(current, std::move(request), later);
  }
}

absl::StatusOr<FunctionNumbers> Core::Numbers(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(name);
  if (function == nullptr) return absl::NotFoundError(absl::StrCat("there is no function '", name, "'"));
  const Counters& counters = *function->counters;
  FunctionNumbers numbers;
  numbers.invocations = counters.invocations;
  numbers.errors = counters.errors;
  numbers.timeouts = counters.timeouts;
  numbers.throttles = counters.throttles;
  for (int level = 0; level < kStartLevels; ++level) {
    const LatencySample& sample = counters.starts[static_cast<size_t>(level)];
    if (sample.count() == 0) continue;
    numbers.starts.push_back(
        {static_cast<StartLevel>(level), sample.count(), sample.Quantile(0.5), sample.Quantile(0.99)});
  }
  for (const InstancePtr& instance : function->instances) {
    if (instance->state == Instance::State::kBusy) ++numbers.busy;
    if (instance->state == Instance::State::kIdle) ++numbers.idle;
    if (instance->process) numbers.memory_bytes += instance->process->MemoryBytes();
  }
  numbers.starting = function->starting;
  numbers.queued = function->queue.size() + function->waiting.size();
  numbers.duration_median_seconds = counters.durations.Quantile(0.5);
  numbers.duration_p99_seconds = counters.durations.Quantile(0.99);
  numbers.problem = counters.problem;
  return numbers;
}

}  // namespace rekindle::functions
