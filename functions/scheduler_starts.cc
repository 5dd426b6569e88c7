// How a scheduler's instances come to be, and what happens when they do not.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "base/utf8.h"
#include "functions/scheduler_core.h"
#include "functions/scheduler_errors.h"
#include "functions/scheduler_instance.h"

namespace rekindle::functions {
namespace {

// Beyond the time that an instance has for its handler: for memory that comes from a busy disk. Whoever
// serves it may hang; then it is started from nothing.
constexpr absl::Duration kLongestCopying = absl::Minutes(1);
// Of an error that is shown among what there is to know of a function.
constexpr size_t kMostOfProblem = 2000;
// Before an instance that is always to be there is tried again, whose start has failed: doubled each time.
constexpr absl::Duration kFirstRefill = absl::Seconds(1), kLastRefill = absl::Minutes(1);

}  // namespace

using Core = Scheduler::Core;

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
      weak_from_this(), function, absl::StrCat(function->spec.name, "-", started_unix_s_, "-", ++started_),
      context_);
  instance->ordered = SteadyNow();
  ++function->starting;
  ++function->counters->living;
  ++living_of_[function->spec.owner];
  function->instances.insert(instance);
  instances_.insert(instance);
  // With the lock, so that Stop waits for it.
  starts_.Post(function->spec.owner, [core = shared_from_this(), function, instance, level] {
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
  order.copied_by = SteadyNow() + function->spec.longest_start + kLongestCopying;
  order.on_end = [weak = weak_from_this(), instance](const InstanceEnd& end) {
    if (auto core = weak.lock()) core->OnEnd(instance, end);
  };
  absl::StatusOr<StartedInstance> started = absl::NotFoundError("nothing to start from");
  std::vector<StartLevel> gone;  // templates
  bool of_no_use = false;        // its own
  bool image_gone = false;
  std::string refused;  // by the last one that there was to start from
  std::string trouble;  // that was not there being none
  const auto start = [&] { return CatchNoMoreThreads([&] { return starter_.Start(order); }); };
  for (StartLevel candidate : levels) {
    order.level = candidate;
    started = start();
    if (started.ok()) break;
    if (candidate == StartLevel::kCold) {
      if (!trouble.empty()) {
        started = WithMessage(
            started.status(),
            absl::StrCat(trouble, "; nor can it be started from nothing: ", started.status().message()));
      }
      break;
    }
    // What passes, such as that the pager has died: the next start has another one.
    if (absl::IsAborted(started.status())) started = start();
    if (started.ok()) break;
    refused = std::string(started.status().message());
    const bool template_level =
        candidate == StartLevel::kTemplate || candidate == StartLevel::kDependencyTemplate;
    if (template_level && absl::IsUnavailable(started.status())) gone.push_back(candidate);
    of_no_use |= candidate == StartLevel::kTemplate && absl::IsFailedPrecondition(started.status());
    if (absl::IsNotFound(started.status())) {
      image_gone |= candidate == StartLevel::kImageRam || candidate == StartLevel::kImageDisk;
    } else {
      trouble = refused;
      Log(LogLevel::kWarning, absl::StrCat("function '", order.function, "' could not be started from ",
                                           NameOf(candidate), ": ", started.status().message()));
    }
  }
  Later later;
  absl::MutexLock lock(&mutex_);
  for (StartLevel level_of_it : gone) TemplateIsGone(function, level_of_it);
  if (image_gone) ImageIsGone(function);
  if (of_no_use) TemplateIsOfNoUse(function, &later);
  if (!started.ok()) return StartFailed(function, instance, started.status(), &later);
  if (!function->replaced) {
    std::string& cold = function->counters->cold;
    cold = function->spec.only_cold;
    if (order.level == StartLevel::kCold && !refused.empty()) {
      cold = absl::StrCat(
          "it is started from nothing, since what it could be started from can't be used: ", refused,
          "; `rekindle deps build --rebuild` makes the image of its dependencies anew");
    }
  }
  instance->level = order.level;
  instance->process = std::move(started->process);
  RuntimeApi::Options options;
  options.may_connect = std::move(started->may_connect);
  options.bodies = answer_bytes_;
  options.owner = absl::StrCat(function->spec.owner);
  options.bodies_of_owner = options_.most_answer_bytes;
  // With the lock: it may ask for its first call at once, and must be whole by then.
  auto api = RuntimeApi::Start(threads_, std::move(started->listener), std::move(options), instance);
  if (!api.ok()) {
    instance->process->Kill();
    NoteEnding(instance);
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
  instance->timer.expires_after(absl::ToChronoNanoseconds(function->spec.longest_start));
  instance->timer.async_wait([weak = weak_from_this(), instance](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->OnStartTimeout(instance);
  });
}

Core::RequestPtr Core::LoseStart(const FunctionPtr& function, Later* later) {
  --function->starting;
  LetImage(function, later);
  if (function->starting < function->queue.size()) {
    RequestPtr request = function->queue.Pop();
    policy_.Ended(function->id);
    return request;
  }
  if (function->drops_owed > 0) {
    --function->drops_owed;
  } else {
    policy_.Lost({ThingKind::kInstance, function->id});
  }
  return nullptr;
}

void Core::StartFailed(const FunctionPtr& function, const InstancePtr& instance, const absl::Status& why,
                       Later* later) {
  RequestPtr request = LoseStart(function, later);
  RetirePredecessor(function, later);
  ++function->failures;
  if (instance->process == nullptr) Forget(instance, later);
  Log(LogLevel::kError,
      absl::StrCat("function '", function->spec.name, "' could not be started: ", why.message()));
  FunctionPtr successor = Find(function->spec.name);
  if (request && successor != nullptr && successor != function &&
      successor->spec.owner == function->spec.owner) {
    Dispatch(successor, std::move(request), later);  // what it waited for was replaced
  } else if (request) {
    ++function->counters->invocations;
    later->steps.emplace_back([request, why] {
      request->done(absl::UnavailableError(absl::StrCat("no instance of function '", request->call->function,
                                                        "' could be started: ", why.message())));
    });
  } else {
    function->counters->problem = std::string(why.message());
  }
  ServeWaiting(function, later);
  Refill(function, later);
}

void Core::FailStart(const InstancePtr& instance, const std::string& error_json, StartFailure failure,
                     Later* later) {
  const FunctionPtr& function = instance->function;
  failure.duration = SteadyNow() - instance->ordered;
  // Without the lock, because a log may have to wait for its disk; before anybody hears of it.
  later->steps.emplace_back(
      [process = instance->process, failure = std::move(failure)] { process->StartFails(failure); });
  if (RequestPtr request = LoseStart(function, later)) {
    ++function->counters->invocations;
    ++function->counters->errors;
    CallResult result;
    result.function_error = "Unhandled";
    result.payload = error_json;
    result.start = SteadyNow() - request->arrived;
    later->steps.emplace_back([request, result] { request->done(result); });
  } else {
    // It is kept and told again and again; who has called gets it whole.
    function->counters->problem = ToUtf8(error_json, kMostOfProblem);
  }
  ++function->failures;
  RetirePredecessor(function, later);
  ServeWaiting(function, later);
  Refill(function, later);
}

void Core::OnStartTimeout(const InstancePtr& instance) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting) return;
  if (!instance->init_failed) {
    const absl::Duration longest = instance->function->spec.longest_start;
    StartFailure failure;
    failure.error_type = kTimedOutType;
    failure.problem = StartTimedOutText(longest);
    failure.timed_out = true;
    FailStart(instance, StartTimedOutError(longest), std::move(failure), &later);
  }
  EndInstance(instance);
}

void Core::OnInitError(const InstancePtr& instance, const std::string& type, const std::string& body) {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (instance->state != Instance::State::kStarting || std::exchange(instance->init_failed, true)) return;
  StartFailure failure;  // without the problem: its runtime has written there what it has to say
  failure.error_type = type;
  FailStart(instance, body, std::move(failure), &later);
}

// At once where one had been of use; those that fail again and again are tried less and less often.
void Core::Refill(const FunctionPtr& function, Later* later) {
  if (stopping_ || function->replaced || function->spec.provisioned == 0) return;
  if (function->failures <= 1) return RefillNow(function, later);
  auto [timer, none_yet] = refills_.try_emplace(function->id, *context_);
  if (!none_yet) return;
  const uint32_t doubled = std::min(function->failures - 2, 10u);
  timer->second.expires_after(
      absl::ToChronoNanoseconds(std::min(kFirstRefill * (1 << doubled), kLastRefill)));
  timer->second.async_wait([weak = weak_from_this(), function](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (error || core == nullptr) return;
    Later then;
    absl::MutexLock lock(&core->mutex_);
    core->refills_.erase(function->id);
    if (!core->stopping_ && !function->replaced) core->RefillNow(function, &then);
  });
}

void Core::RefillNow(const FunctionPtr& function, Later* later) {
  std::vector<Action> actions;
  policy_.UpdateFunction(function->id, function->profile, Now(), &actions);
  Apply(actions, later);
}

}  // namespace rekindle::functions
