// A scheduler's calls, from the moment that an instance is there to take them.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/log.h"
#include "functions/scheduler_core.h"
#include "functions/scheduler_errors.h"
#include "functions/scheduler_instance.h"

namespace rekindle::functions {
namespace {

constexpr uint32_t kMostTakenBack = 3;

}  // namespace

using Core = Scheduler::Core;

void Core::OnReady(const InstancePtr& instance) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting) return;
  instance->timer.cancel();
  const FunctionPtr& function = instance->function;
  --function->starting;
  instance->start = SteadyNow() - instance->ordered;
  LearnStart(function, instance->level, absl::ToDoubleSeconds(instance->start), &later);
  instance->state = Instance::State::kIdle;
  // That may have to be noted on a disk.
  if (instance->process != nullptr)
    clearers_.Post(function->spec.owner, [process = instance->process] { process->IsReady(); });
  RetirePredecessor(function, &later);
  BecameFree(function, instance, &later);
  LetImage(function, &later);
  if (memory_is_waited_for_) ServeInTurn(&later);  // whom it was started for may have gone
}

void Core::BecameFree(const FunctionPtr& function, const InstancePtr& instance, Later* later) {
  if (!function->queue.empty() && HasTooMany(*function)) {
    // Who came last waits; for the others there still is one.
    function->waiting.PushFirst(function->queue.PopLast());
    NoteWaiting(*function);
    policy_.Ended(function->id);
    return EndInstance(instance);
  }
  while (!function->queue.empty()) {
    RequestPtr request = function->queue.Pop();
    if (!request->gone()) return Assign(function, instance, request, later);
    // The instance that is being started for it is one that is idle, to the policy.
    later->steps.emplace_back([request] { request->done(NobodyWaits()); });
    request->room.reset();
    std::vector<Action> actions;
    if (function->replaced) {
      policy_.Ended(function->id);
    } else {
      policy_.BecameIdle(function->id, Now(), &actions);
    }
    Apply(actions, later);
    PlanTick();
  }
  DropGone(*function, /*all=*/false, later);
  if (function->replaced) return EndInstance(instance);
  if (HasTooMany(*function) || (!function->waiting.empty() && OwesAnInstance(*function))) {
    // Its next call waits until one of its others has answered, or it is its turn again.
    if (function->drops_owed > 0) {
      --function->drops_owed;
    } else {
      policy_.Lost({ThingKind::kInstance, function->id});
    }
    return EndInstance(instance);
  }
  if (!function->waiting.empty()) {
    RequestPtr request = function->waiting.Pop();
    NoteWaiting(*function);
    // What the policy wanted to go is another one now.
    if (function->drops_owed > 0) --function->drops_owed;
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
  instance->idle_since = SteadyNow();
  if (!instance->answered) instance->was_idle = true;
  function->idle.push_back(instance);
  if (instance->filling) AwaitFilled(instance);
  if (FunctionPtr other = NextInTurn(function.get(), {})) MakeRoomFor(*other);
}

void Core::Assign(const FunctionPtr& function, const InstancePtr& instance, const RequestPtr& request,
                  Later* later) {
  if (request->taken_back == 0) ++function->counters->invocations;
  instance->state = Instance::State::kBusy;
  instance->current = request;
  request->room.reset();
  request->begun = SteadyNow();
  if (request->payload == nullptr) {
    request->payload = request->own
                           ? std::make_shared<const std::string>(std::move(request->own->payload))
                           : std::shared_ptr<const std::string>(request->call, &request->call->payload);
  }
  request->taken = std::make_shared<std::atomic<bool>>(false);
  Invocation invocation;
  invocation.request_id = request->call->request_id;
  invocation.deadline = absl::Now() + function->spec.timeout;
  invocation.function_arn = absl::StrCat(options_.arn_prefix, function->spec.name);
  invocation.trace_id = request->call->trace_id;
  invocation.client_context = request->call->client_context;
  invocation.payload = request->payload;
  invocation.taken = request->taken;
  instance->timer.expires_after(absl::ToChronoNanoseconds(function->spec.timeout));
  instance->timer.async_wait([weak = weak_from_this(), instance,
                              id = request->call->request_id](const boost::system::error_code& error) {
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
  bool measure = false;
  {
    absl::MutexLock lock(&mutex_);
    if (instance->state != Instance::State::kBusy || instance->current == nullptr ||
        instance->current->call->request_id != request_id) {
      return;
    }
    if (answer.failed) ++function->counters->errors;
    instance->state = Instance::State::kAnswering;
    process = instance->process;
    const absl::Time now = SteadyNow();
    measure = now - instance->measured >= options_.measure_every;
    if (measure) instance->measured = now;
    request = Finish(instance, &result, &outcome);
  }
  // Before the next call can write to the same log.
  result.log_tail = process->InvocationEnds(outcome);
  const bool first = !outcome.was_there_before;
  const uint64_t memory = measure ? process->MemoryBytes() : 0;
  Later later;
  absl::MutexLock lock(&mutex_);
  // The caller hears of it when the instance can take his next call.
  later.steps.emplace_back(
      [request, result = std::move(result)]() mutable { request->done(std::move(result)); });
  if (first) {
    // Not behind what is made: until then all that it touches counts as needed for an answer.
    clearers_.Post(function->spec.owner, [core = shared_from_this(), process, instance] {
      process->HasAnswered();
      core->OnFilling(instance);
    });
  }
  if (measure) LearnSize(function, memory, first, &later);
  LearnWork(function, process->PeakBytes());
  if (instance->state != Instance::State::kAnswering) {
    policy_.Ended(function->id);  // it has ended meanwhile
    return Refill(function, &later);
  }
  function->failures = 0;
  instance->state = Instance::State::kIdle;
  std::vector<Action> actions;
  if (function->replaced) {
    policy_.Ended(function->id);
  } else {
    policy_.BecameIdle(function->id, Now(), &actions);
  }
  // Before it is given to somebody: the policy may have meant this one.
  Apply(actions, &later);
  BecameFree(function, instance, &later);
  if (memory_is_waited_for_) ServeInTurn(&later);
  PlanTick();
}

void Core::OnFilling(const InstancePtr& instance) {
  absl::MutexLock lock(&mutex_);
  instance->filling = true;
  if (instance->state == Instance::State::kIdle) AwaitFilled(instance);
}

void Core::AwaitFilled(const InstancePtr& instance) {
  instance->timer.expires_after(absl::ToChronoNanoseconds(options_.filled_after));
  instance->timer.async_wait([weak = weak_from_this(), instance](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->OnFilled(instance);
  });
}

void Core::OnFilled(const InstancePtr& instance) {
  std::shared_ptr<InstanceProcess> process;
  {
    absl::MutexLock lock(&mutex_);
    if (instance->state != Instance::State::kIdle || !std::exchange(instance->filling, false)) return;
    process = instance->process;
  }
  const uint64_t memory = process->MemoryBytes();
  Later later;
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  LearnSize(instance->function, memory, /*first=*/false, &later);
  if (memory_is_waited_for_) ServeInTurn(&later);
}

Core::RequestPtr Core::Finish(const InstancePtr& instance, CallResult* result, InvocationOutcome* outcome) {
  RequestPtr request = std::exchange(instance->current, nullptr);
  instance->timer.cancel();
  const bool first = !std::exchange(instance->answered, true);
  const bool was_there = !first || instance->was_idle;
  outcome->request_id = request->call->request_id;
  outcome->duration = SteadyNow() - request->begun;
  outcome->was_there_before = !first;
  if (!was_there) outcome->start = instance->start;
  instance->function->counters->durations.Add(absl::ToDoubleSeconds(outcome->duration));
  result->instance = instance->id;
  result->level = was_there ? StartLevel::kInstance : instance->level;
  result->duration = outcome->duration;
  result->start = request->begun - request->arrived;
  return request;
}

bool Core::TakeBack(const InstancePtr& instance, Later* later) {
  const RequestPtr request = instance->current;
  const FunctionPtr function = Find(instance->function->spec.name);
  // Another owner's function of that name is none of its caller's. Who has it taken from several is likely
  // not to be innocent of their ends.
  if (stopping_ || function == nullptr || function->spec.owner != instance->function->spec.owner ||
      request->taken_back >= kMostTakenBack || request->taken->exchange(true))
    return false;
  ++request->taken_back;
  instance->current = nullptr;
  policy_.Ended(instance->function->id);
  later->steps.emplace_back(
      [process = instance->process, id = request->call->request_id] { process->InvocationIsTakenBack(id); });
  if (!function->idle.empty()) {
    Dispatch(function, request, later);
    return true;
  }
  const bool one_comes = function->starting > function->queue.size() + function->waiting.size();
  function->waiting.PushFirst(request);
  NoteWaiting(*function);
  if (!one_comes) MakeRoomFor(*function);
  return true;
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
      instance->current->call->request_id != request_id) {
    return;
  }
  const FunctionPtr& function = instance->function;
  if (TakeBack(instance, &later)) {
    instance->timer.cancel();
    const std::string why =
        absl::StrCat("it asked for no further call within ", absl::FormatDuration(function->spec.timeout),
                     " (--timeout) of its last answer: what a handler begins has to end with it");
    later.steps.emplace_back([process = instance->process, why] { process->WasEnded(why); });
  } else {
    ++function->counters->timeouts;
    FinishBadly(instance, TimedOutError(request_id, function->spec.timeout),
                TimedOutText(function->spec.timeout),
                /*timed_out=*/true, &later);
    policy_.Ended(function->id);
  }
  EndInstance(instance);
  ServeWaiting(function, &later);
  Refill(function, &later);
}

void Core::OnEnd(const InstancePtr& instance, const InstanceEnd& end) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->process == nullptr) {
    instance->end = end;
    return;
  }
  const FunctionPtr& function = instance->function;
  const Instance::State state = instance->state;
  NoteEnding(instance);
  instance->timer.cancel();
  if (state != Instance::State::kEnding && !end.why.empty()) {
    Log(LogLevel::kWarning, absl::StrCat("instance ", instance->id, " of function '", function->spec.name,
                                         "' was ended: ", end.why));
    // Ahead of what the log says of its call.
    later.steps.emplace_back([process = instance->process, why = end.why] { process->WasEnded(why); });
  }
  switch (state) {
    case Instance::State::kStarting:
      if (!instance->init_failed) {
        const uint64_t memory = function->spec.memory_bytes;
        StartFailure failure;
        failure.error_type = ExitType(end);
        failure.problem = ExitText(end, memory);
        FailStart(instance, ExitError("", end, memory), std::move(failure), &later);
      }
      break;
    case Instance::State::kBusy: {
      if (TakeBack(instance, &later)) {
        Refill(function, &later);
        break;
      }
      const std::string id = instance->current->call->request_id;
      const uint64_t memory = function->spec.memory_bytes;
      FinishBadly(instance, ExitError(id, end, memory), ExitText(end, memory), /*timed_out=*/false, &later);
      policy_.Ended(function->id);
      Refill(function, &later);
      break;
    }
    case Instance::State::kIdle:
      std::erase(function->idle, instance);
      policy_.Lost({ThingKind::kInstance, function->id});
      if (!instance->answered) ++function->failures;
      Refill(function, &later);
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
    Later then;
    absl::MutexLock ended(&core->mutex_);
    core->Forget(instance, &then);
  };
  if (stopping_) {
    later.steps.emplace_back(std::move(clear));
  } else {
    clearers_.Post(function->spec.owner, std::move(clear));  // with the lock, so that Stop waits for it
  }
  ServeWaiting(function, &later);
}

void Core::Forget(const InstancePtr& instance, Later* later) {
  const uint32_t owner = instance->function->spec.owner;
  const bool all_waited =
      instances_.size() >= options_.most_instances || !OwnerMayHaveMore(owner) || memory_is_waited_for_;
  ending_.erase(instance);
  if (instances_.erase(instance) == 0) return;
  instance->function->instances.erase(instance);
  --instance->function->counters->living;
  if (--living_of_[owner] == 0) living_of_.erase(owner);
  if (stopping_) return;
  // There is room for one more.
  if (all_waited) return ServeInTurn(later);
  ServeWaiting(instance->function, later);
  FillProvisioned(Find(instance->function->spec.name), later);
}

void Core::NoteEnding(const InstancePtr& instance) {
  instance->state = Instance::State::kEnding;
  if (instances_.contains(instance)) ending_.insert(instance);
}

void Core::EndInstance(const InstancePtr& instance) {
  NoteEnding(instance);
  instance->ending_since = SteadyNow();
  instance->timer.cancel();
  if (instance->api) instance->api->Close();
  if (instance->process) instance->process->Kill();
}

}  // namespace rekindle::functions
