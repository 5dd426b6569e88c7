#include "functions/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/status.h"
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

// That it takes as long as it waits.
uint64_t BytesOf(const Call& call) {
  return sizeof(Call) + call.payload.size() + call.client_context.size() + call.trace_id.size();
}

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
Scheduler::~Scheduler() { Stop(); }
void Scheduler::Stop() { core_->Stop(); }
absl::StatusOr<Scheduler::Reservation> Scheduler::ReserveProvisioned(const ScheduledFunction& function) {
  return core_->ReserveProvisioned(function);
}
void Scheduler::Put(const ScheduledFunction& function) { core_->Put(function); }
void Scheduler::Adjust(const ScheduledFunction& function) { core_->Adjust(function); }
void Scheduler::Remove(const std::string& name) { core_->Remove(name); }
void Scheduler::LostTemplate(const std::string& dependency_image) { core_->LostTemplate(dependency_image); }
void Scheduler::Invoke(Call call, Done done) {
  auto own = std::make_shared<Call>(std::move(call));
  core_->Invoke(own, own, std::move(done));
}
void Scheduler::InvokeEvent(std::shared_ptr<const Call> event, Done done) {
  core_->Invoke(std::move(event), nullptr, std::move(done));
}
std::vector<StartTimes> Scheduler::Times() const { return core_->Times(); }
absl::StatusOr<FunctionNumbers> Scheduler::Numbers(const std::string& name) const {
  return core_->Numbers(name);
}

using Core = Scheduler::Core;

Core::Core(const SchedulerOptions& options, InstanceStarter& starter, HttpThreads& threads)
    : options_(options),
      starter_(starter),
      threads_(threads),
      epoch_(SteadyNow()),
      started_unix_s_(absl::ToUnixSeconds(absl::Now())),
      context_(threads.context()),
      starts_(options.threads.starts, std::max(options.threads.starts - 1, 1)),
      makers_(options.threads.makers, options.threads.makers_of_one),
      clearers_(options.threads.clearers, options.threads.clearers_of_one),
      policy_(options.keep_alive),
      tick_(*context_) {}

void Core::Stop() {
  std::vector<RequestPtr> unserved;
  std::vector<InstancePtr> instances;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    tick_.cancel();
    refills_.clear();
    image_retries_.clear();
    auto give_up = [&unserved](Function& function) {
      function.replaced = true;
      function.idle.clear();  // they hold it, and it them
      for (auto* queue : {&function.queue, &function.waiting}) {
        for (RequestPtr& request : queue->TakeAll()) unserved.push_back(std::move(request));
      }
    };
    for (auto& [name, function] : functions_) give_up(*function);
    for (const InstancePtr& instance : instances_) give_up(*instance->function);  // older revisions
    instances.assign(instances_.begin(), instances_.end());
    for (const InstancePtr& instance : instances) {
      NoteEnding(instance);
      instance->timer.cancel();
      if (instance->current) unserved.push_back(std::exchange(instance->current, nullptr));
      if (instance->api) instance->api->Close();
      if (instance->process) instance->process->Kill();
    }
  }
  for (const RequestPtr& request : unserved) {
    request->done(absl::UnavailableError("the daemon is ending"));
  }
  starter_.StopMaking();
  starts_.Join();
  makers_.Join();
  clearers_.Join();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](std::set<InstancePtr>* left) { return left->empty(); }, &instances_));
}

Micros Core::Now() const { return absl::ToInt64Microseconds(SteadyNow() - epoch_); }

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

void Core::Provisioned::RaiseTo(const ScheduledFunction& function) {
  instances = std::max<uint64_t>(instances, function.provisioned);
  bytes = std::max(bytes, function.provisioned * function.memory_bytes);
  owner = function.owner;
}

absl::StatusOr<Scheduler::Reservation> Core::ReserveProvisioned(const ScheduledFunction& wanted) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(CheckProvisioned(wanted));
  Reservation reservation;
  reservation.core_ = weak_from_this();
  reservation.number_ = ++last_reservation_;
  reserved_[reservation.number_] = wanted;
  return reservation;
}

void Core::GiveBack(uint64_t reservation) {
  absl::MutexLock lock(&mutex_);
  reserved_.erase(reservation);
}

Scheduler::Reservation::~Reservation() {
  if (auto core = core_.lock()) core->GiveBack(number_);
}

absl::Status Core::CheckProvisioned(const ScheduledFunction& wanted) const {
  if (wanted.provisioned == 0) return absl::OkStatus();
  const uint64_t bytes = wanted.provisioned * wanted.memory_bytes;
  if (FunctionPtr present = Find(wanted.name);
      present && present->spec.provisioned >= wanted.provisioned &&
      present->spec.provisioned * present->spec.memory_bytes >= bytes) {
    return absl::OkStatus();
  }
  // Of each function the most that any of its revisions may have, the present one and those to come.
  std::map<std::string, Provisioned> of_each;
  for (const auto& [name, other] : functions_) {
    if (name != wanted.name) of_each[name].RaiseTo(other->spec);
  }
  for (const auto& [number, other] : reserved_) of_each[other.name].RaiseTo(other);
  of_each[wanted.name].RaiseTo(wanted);
  uint64_t all = 0, all_bytes = 0, of_owner = 0;
  for (const auto& [name, provisioned] : of_each) {
    all += provisioned.instances;
    all_bytes += provisioned.bytes;
    if (provisioned.owner == wanted.owner) of_owner += provisioned.instances;
  }
  if (all > options_.most_instances) {
    return absl::ResourceExhaustedError(
        absl::StrCat("function '", wanted.name, "': ", wanted.provisioned, " provisioned instances make ",
                     all, " with those of other functions, and this node has at most ",
                     options_.most_instances, ": lower --provisioned, of this one or of others"));
  }
  if (of_owner > MostInstancesOf(wanted.owner)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("function '", wanted.name, "': ", wanted.provisioned, " provisioned instances make ",
                     of_owner, " with those of other functions of user ", wanted.owner,
                     ", and one user has at most ", MostInstancesOf(wanted.owner), " of this node's ",
                     options_.most_instances, ": lower --provisioned, of this one or of others"));
  }
  if (all_bytes > options_.keep_alive.memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("function '", wanted.name, "': ", wanted.provisioned, " provisioned instances of ",
                     FormatBytes(wanted.memory_bytes), " may come to ", FormatBytes(all_bytes),
                     " with those of other functions, and all functions of this node have ",
                     FormatBytes(options_.keep_alive.memory_bytes),
                     ": lower --provisioned or --memory, of this one or of others, or give rekindled more "
                     "(--functions-memory)"));
  }
  return absl::OkStatus();
}

void Core::Put(const ScheduledFunction& spec) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  FunctionPtr old = Find(spec.name);
  FunctionPtr predecessor = old ? KeepForNow(old, spec, &later) : nullptr;
  auto function = std::make_shared<Function>();
  function->spec = spec;
  function->has_image = spec.has_image;
  auto& counters = counters_[spec.name];
  if (counters == nullptr) counters = std::make_shared<Counters>();
  function->counters = counters;
  counters->problem.clear();  // of what is replaced
  counters->cold = spec.only_cold;
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
  if (old) ForgetWants(*old);
  functions_[spec.name] = function;
  if (old) function->waiting = std::exchange(old->waiting, {});
  NoteWaiting(*function);
  NoteProvisioned(function);
  function->predecessor = std::move(predecessor);
  Apply(actions, &later);
  // There is no room for both, or no memory.
  if (function->starting == 0) RetirePredecessor(function, &later);
  ServeWaiting(function, &later);
  PlanTick();
}

void Core::Adjust(const ScheduledFunction& spec) {
  Later later;
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(spec.name);
  if (stopping_ || function == nullptr || function->spec.revision != spec.revision) return;
  function->spec.timeout = spec.timeout;
  function->spec.provisioned = function->profile.provisioned = spec.provisioned;
  function->spec.most_instances = spec.most_instances;
  NoteProvisioned(function);
  if (function->predecessor) {
    function->predecessor->spec.most_instances = spec.most_instances;
    EndSurplus(*function->predecessor);
  }
  EndSurplus(*function);
  std::vector<Action> actions;
  policy_.UpdateFunction(function->id, function->profile, Now(), &actions);
  Apply(actions, &later);
  ServeWaiting(function, &later);
  PlanTick();
}

Core::FunctionPtr Core::KeepForNow(const FunctionPtr& old, const ScheduledFunction& successor, Later* later) {
  // One of which none has been ready yet serves nobody.
  FunctionPtr serves = old->predecessor ? std::exchange(old->predecessor, nullptr) : old;
  if (serves != old) Retire(old, later);
  if (successor.provisioned > 0 && !serves->idle.empty()) {
    serves->spec.provisioned = 0;  // none of it is started any more
    serves->superseded = true;
    return serves;
  }
  Retire(serves, later);
  return nullptr;
}

void Core::RetirePredecessor(const FunctionPtr& function, Later* later) {
  FunctionPtr predecessor = std::exchange(function->predecessor, nullptr);
  if (predecessor == nullptr) return;
  Retire(predecessor, later);
  // What there was no room for until now.
  RefillNow(function, later);
}

void Core::Remove(const std::string& name) {
  Later later;
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(name);
  if (function == nullptr) return;
  functions_.erase(name);
  ForgetWants(*function);
  Retire(function, &later);
  for (size_t i = 0; i < function->queue.size(); ++i) policy_.Ended(function->id);
  for (auto* queue : {&function->queue, &function->waiting}) {
    for (const RequestPtr& request : queue->TakeAll()) {
      later.steps.emplace_back([request, name] {
        request->done(absl::NotFoundError(absl::StrCat("function '", name, "' was removed meanwhile")));
      });
    }
  }
  counters_.erase(name);
}

// Its calls under way and those that instances are being started for end with it.
void Core::Retire(const FunctionPtr& function, Later* later) {
  if (FunctionPtr predecessor = std::exchange(function->predecessor, nullptr)) Retire(predecessor, later);
  function->replaced = true;
  std::vector<Action> actions;
  policy_.RemoveFunction(function->id, &actions);
  // Templates of it, say; its instances go below, all of them.
  std::erase_if(actions, [](const Action& action) { return action.thing.kind == ThingKind::kInstance; });
  Apply(actions, later);
  refills_.erase(function->id);
  image_retries_.erase(function->id);
  ForgetWaitingImage(function, later);
  for (const InstancePtr& instance : std::exchange(function->idle, {})) EndInstance(instance);
}

void Core::Invoke(std::shared_ptr<const Call> call, std::shared_ptr<Call> own, Done done) {
  const bool event = own == nullptr;
  Later later;
  absl::MutexLock lock(&mutex_);
  FunctionPtr function = Find(call->function);
  if (function == nullptr || stopping_) {
    absl::Status status =
        stopping_ ? absl::UnavailableError("the daemon is ending")
                  : absl::NotFoundError(absl::StrCat("there is no function '", call->function,
                                                     "': 'rekindle fn ls' lists those there are"));
    later.steps.emplace_back([done = std::move(done), status] { done(status); });
    return;
  }
  if (call->dry_run) {
    later.steps.emplace_back([done = std::move(done)] { done(CallResult()); });
    return;
  }
  if (function->idle.empty() && function->predecessor && !function->predecessor->idle.empty())
    function = function->predecessor;
  auto request = std::make_shared<Request>();
  request->call = std::move(call);
  request->own = std::move(own);
  request->event = event;
  request->done = std::move(done);
  request->arrived = SteadyNow();
  if (function->idle.empty() && !event) {
    const uint32_t owner = function->spec.owner;
    const uint64_t most = options_.most_waiting_bytes;
    auto take = [&] { return waiting_bytes_->Take(absl::StrCat(owner), BytesOf(*request->call), most); };
    request->room = take();
    if (!request->room) {
      DropGone(*function, /*all=*/true, &later);
      request->room = take();
    }
    if (!request->room) {
      ++function->counters->throttles;
      later.steps.emplace_back([request, owner, most] {
        request->done(absl::ResourceExhaustedError(
            absl::StrCat("Rate Exceeded: calls of functions of user ", owner,
                         " that wait for an instance have ", FormatBytes(most),
                         " together, which is all that they may: send fewer at a time, or smaller ones")));
      });
      return;
    }
  }
  // One that is being started for nobody any more, or ahead of time, will do.
  const bool one_comes = function->starting > function->queue.size() + function->waiting.size();
  if (function->idle.empty() && (one_comes || !MayStart(*function))) {
    auto full = [&] {
      return function->waiting.callers() + function->queue.callers() >= options_.longest_queue;
    };
    if (!event && full()) DropGone(*function, /*all=*/true, &later);
    if (!event && full()) {
      ++function->counters->throttles;
      later.steps.emplace_back([request] {
        request->done(absl::ResourceExhaustedError(
            absl::StrCat("Rate Exceeded: function '", request->call->function,
                         "' has as many instances as it may, and its queue is full")));
      });
      return;
    }
    if (!event && function->queue.events() > 0) {
      // The instance that is being started for an event is for this one.
      function->waiting.PushFirst(function->queue.PopLastEvent());
      function->queue.Push(std::move(request));
    } else {
      function->waiting.Push(std::move(request));
    }
    NoteWaiting(*function);
    if (!one_comes) MakeRoomFor(*function);
    return;
  }
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
    function->queue.Push(std::move(request));
    BeginStart(function, decision.level);
  }
  Apply(actions, later);
  PlanTick();
}

void Core::DropGone(Function& function, bool all, Later* later) {
  std::vector<RequestPtr> gone;
  if (all) gone = function.waiting.TakeGoneCallers();
  while (!function.waiting.empty() && function.waiting.front()->gone())
    gone.push_back(function.waiting.Pop());
  if (!gone.empty()) NoteWaiting(function);
  for (RequestPtr& request : gone) {
    request->room.reset();
    later->steps.emplace_back([request = std::move(request)] { request->done(NobodyWaits()); });
  }
}

void Core::ServeFirst(const FunctionPtr& function, Later* later) {
  DropGone(*function, /*all=*/false, later);
  if (function->waiting.empty()) return;
  RequestPtr request = function->waiting.Pop();
  NoteWaiting(*function);
  Dispatch(function, std::move(request), later);
}

void Core::ServeWaiting(const FunctionPtr& function, Later* later) {
  FunctionPtr current = Find(function->spec.name);
  if (current == nullptr) return;
  while (CallsWithoutInstance(*current) > 0 && MayStart(*current)) ServeFirst(current, later);
}

void Core::FillProvisioned(const FunctionPtr& function, Later* later) {
  if (function != nullptr && LacksProvisioned(*function) && MayStart(*function)) Refill(function, later);
}

absl::StatusOr<FunctionNumbers> Core::Numbers(const std::string& name) const {
  std::vector<std::shared_ptr<InstanceProcess>> processes;
  RK_ASSIGN_OR_RETURN(FunctionNumbers numbers, NumbersBut(name, &processes));
  // Without the lock: all calls would wait for it.
  for (const auto& process : processes) numbers.memory_bytes += process->MemoryBytes();
  return numbers;
}

absl::StatusOr<FunctionNumbers> Core::NumbersBut(
    const std::string& name, std::vector<std::shared_ptr<InstanceProcess>>* processes) const {
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
    if (instance->process) processes->push_back(instance->process);
  }
  numbers.starting = function->starting;
  numbers.queued = function->queue.wanted() + function->waiting.wanted();
  numbers.duration_median_seconds = counters.durations.Quantile(0.5);
  numbers.duration_p99_seconds = counters.durations.Quantile(0.99);
  numbers.problem = !counters.problem.empty() ? counters.problem
                    : !counters.cold.empty()  ? counters.cold
                                              : function->spec.lacks;
  return numbers;
}

}  // namespace rekindle::functions
