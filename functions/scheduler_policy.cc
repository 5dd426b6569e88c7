// What the keep-alive policy is told of a scheduler's starts, and how what it wants is done.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/parallel.h"
#include "functions/scheduler_core.h"
#include "functions/scheduler_instance.h"

namespace rekindle::functions {
namespace {

// Where measured starts meet older ones: a weight that follows changes within a few starts.
constexpr double kLearn = 0.3;
// Of a level that there never will be: it must not look quick, however slow the others become.
constexpr double kNeverMs = 1e9;
// Whose threads templates of dependencies are made on: no user's code runs in those.
constexpr FairThreads::Owner kNobody = UINT64_MAX;
// Of an image that could not be taken, as long as no call asks for another start: each loads the function.
constexpr uint32_t kMostRetriesByItself = 20;
// That anything counts with.
constexpr uint64_t kLeastBytes = uint64_t{1} << 20;
// By each call, of how much more an earlier one needed.
constexpr uint64_t kForgottenPart = 64;

// Up to a quarter longer, for each function its own: what failed for all at once is not tried by all at once.
absl::Duration Spread(absl::Duration pause, FunctionId function) {
  constexpr uint32_t kGolden = 2654435769u;
  return pause + pause * (static_cast<double>(function * kGolden) / UINT32_MAX / 4);
}

}  // namespace

using Core = Scheduler::Core;

void Core::LearnStart(const FunctionPtr& function, StartLevel level, double seconds, Later* later) {
  function->counters->starts[static_cast<size_t>(level)].Add(seconds);
  StartTimes& times = times_[static_cast<size_t>(level)];
  times.level = level;
  ++times.count;
  times.seconds += seconds;
  for (size_t i = 0; i < times.within.size(); ++i) {
    if (seconds <= StartTimes::kBounds[i]) ++times.within[i];
  }
  const double ms = seconds * 1e3;
  FunctionProfile& profile = function->profile;
  auto learn = [ms](double* known, bool* timed) {
    *known += (std::exchange(*timed, true) ? kLearn : 1) * (ms - *known);
  };
  // Both load the function: how long that takes is in neither guess.
  auto guess = [ms](double* other, bool timed, double guessed) {
    if (!timed && *other < kNeverMs) *other += std::max(0.0, ms - guessed);
  };
  switch (level) {
    case StartLevel::kTemplate:
      learn(&profile.template_ms, &function->template_timed);
      break;
    case StartLevel::kDependencyTemplate:
      if (!function->dependency_template_timed)
        guess(&profile.dependency_image_ms, function->dependency_image_timed, profile.dependency_template_ms);
      learn(&profile.dependency_template_ms, &function->dependency_template_timed);
      break;
    case StartLevel::kImageRam:
    case StartLevel::kImageDisk:
      learn(&profile.image_ms, &function->image_timed);
      break;
    case StartLevel::kDependencyRam:
    case StartLevel::kDependencyDisk:
      if (!function->dependency_image_timed)
        guess(&profile.dependency_template_ms, function->dependency_template_timed,
              profile.dependency_image_ms);
      learn(&profile.dependency_image_ms, &function->dependency_image_timed);
      break;
    case StartLevel::kCold:
      learn(&profile.cold_ms, &function->cold_timed);
      break;
    case StartLevel::kInstance:
      break;
  }
  if (function->replaced) return;
  std::vector<Action> actions;
  policy_.UpdateFunction(function->id, profile, Now(), &actions);
  Apply(actions, later);
}

std::vector<StartTimes> Core::Times() const {
  absl::MutexLock lock(&mutex_);
  std::vector<StartTimes> times;
  std::copy_if(times_.begin(), times_.end(), std::back_inserter(times),
               [](const StartTimes& one) { return one.count > 0; });
  return times;
}

void Core::LearnSize(const FunctionPtr& function, uint64_t bytes, bool first, Later* later) {
  if (function->replaced) return;
  FunctionProfile& profile = function->profile;
  const uint64_t known = profile.instance_bytes;
  bytes = std::max(bytes, kLeastBytes);
  if (std::exchange(function->size_known, true)) {
    if (bytes > known - known / 4 && bytes < known + known / 4) return;
    // It does not have all of its image yet.
    if (first && bytes < known) return;
  }
  profile.instance_bytes = bytes;
  if (!function->template_size_known) profile.template_bytes = bytes;
  std::vector<Action> actions;
  policy_.UpdateFunction(function->id, profile, Now(), &actions);
  Apply(actions, later);
}

void Core::LearnWork(const FunctionPtr& function, uint64_t bytes) {
  if (function->replaced || bytes == 0) return;
  uint64_t& known = function->work_bytes;
  // What one call alone needed is forgotten in time.
  known = bytes >= known ? bytes : known - (known - bytes) / kForgottenPart;
  if (known > function->profile.instance_bytes) {
    grow_at_work_.insert(function->id);
  } else {
    grow_at_work_.erase(function->id);
  }
}

void Core::LearnTemplateSize(const FunctionPtr& function, uint64_t bytes, Later* later) {
  function->template_size_known = true;
  function->profile.template_bytes = std::max(bytes, kLeastBytes);
  std::vector<Action> actions;
  policy_.UpdateFunction(function->id, function->profile, Now(), &actions);
  Apply(actions, later);
}

void Core::Apply(std::vector<Action>& actions, Later* later) {
  for (const Action& action : std::exchange(actions, {})) Apply(action, later);
}

void Core::Apply(const Action& action, Later* later) {
  const Thing thing = action.thing;
  const bool make = action.verb == Action::Verb::kMake;
  FunctionPtr function;
  std::string dependency;
  switch (thing.kind) {
    case ThingKind::kInstance:
    case ThingKind::kTemplate:
    case ThingKind::kRamImage:
    case ThingKind::kDiskImage:
      function = thing.owner < by_id_.size() ? by_id_[thing.owner].lock() : nullptr;
      if (function == nullptr) return;
      break;
    case ThingKind::kDependencyTemplate:
    case ThingKind::kDependencyRam:
    case ThingKind::kDependencyDisk:
      for (const Dependency& candidate : dependencies_) {
        if (candidate.id == thing.owner) dependency = candidate.image;
      }
      if (dependency.empty()) return;
      break;
  }
  switch (thing.kind) {
    case ThingKind::kInstance:
      if (make) {
        if (function->replaced) return;
        if (!function->superseded && MayStart(*function)) return BeginStart(function, StartLevel::kTemplate);
        policy_.Lost(thing);
        // It is made when another one has ended.
        if (LacksProvisioned(*function)) MakeRoomFor(*function);
      } else if (function->idle.empty()) {
        ++function->drops_owed;
      } else {
        InstancePtr oldest = function->idle.front();
        function->idle.erase(function->idle.begin());
        EndInstance(oldest);
      }
      return;
    case ThingKind::kRamImage:
    case ThingKind::kDependencyRam:
      return;  // the pager's cache decides by itself what it keeps
    case ThingKind::kDependencyDisk:
      return;  // kept as long as a function is deployed that needs it
    case ThingKind::kDiskImage:
      if (make && (function->has_image || !function->spec.may_have_image)) return;
      // It is loaded for that, too: one that listens on a port could not be, here or there, and a call waits
      // for the one that is being started.
      if (make) {
        function->image_waits = AllAreStarting(*function);
        if (function->image_waits) return;
      } else {
        ForgetWaitingImage(function, later);
      }
      break;
    case ThingKind::kTemplate:
      // It would only stand and wait, on a thread of its owner's.
      function->template_waits =
          make && !function->has_image && policy_.Keeps({ThingKind::kDiskImage, function->id});
      if (function->template_waits) return;
      break;
    case ThingKind::kDependencyTemplate:
      break;
  }
  if (!make) {
    if (thing.kind == ThingKind::kTemplate) function->has_template = false;
    if (thing.kind == ThingKind::kDiskImage) function->has_image = false;
    for (Dependency& candidate : dependencies_) {
      if (thing.kind == ThingKind::kDependencyTemplate && candidate.id == thing.owner)
        candidate.has_template = false;
    }
  }
  later->steps.emplace_back([core = shared_from_this(), thing, make, function, dependency] {
    absl::MutexLock lock(&core->mutex_);  // Stop waits for what was begun, and nothing is begun after it
    if (core->stopping_) return;
    const FairThreads::Owner owner = function ? function->spec.owner : kNobody;
    if (make) {
      core->makers_.Post(owner, [core, thing, function, dependency] {
        core->Make(thing, function, dependency);
        if (thing.kind == ThingKind::kDiskImage) core->EndRetry(thing.owner);
      });
    } else {
      core->clearers_.Post(
          owner, [core, thing, function, dependency] { core->Unmake(thing, function, dependency); });
    }
  });
}

void Core::Make(const Thing& thing, const FunctionPtr& function, const std::string& dependency) {
  {
    Later later;
    absl::MutexLock lock(&mutex_);
    if (stopping_ || (function && function->replaced)) return;
    // It may have been dropped while this waited for its turn.
    if (!policy_.Keeps(thing)) {
      if (thing.kind == ThingKind::kDiskImage) LetTemplate(function, &later);
      return;
    }
  }
  const bool own = thing.kind == ThingKind::kTemplate;
  const absl::StatusOr<uint64_t> bytes = CatchNoMoreThreads([&]() -> absl::StatusOr<uint64_t> {
    if (thing.kind == ThingKind::kDiskImage)
      return starter_.CaptureImage(function->spec.name, function->spec.revision);
    return starter_.MakeTemplate(own ? function->spec.name : "", own ? function->spec.revision : 0,
                                 own ? function->spec.dependency_image : dependency);
  });
  const absl::Status& status = bytes.status();
  Later later;
  absl::MutexLock lock(&mutex_);
  if (function && function->replaced) return;
  if (status.ok()) {
    // Or while it was made, and there was nothing to take away yet.
    const bool kept = policy_.Keeps(thing);
    if (thing.kind == ThingKind::kDiskImage) {
      function->has_image = kept;
      function->counters->problem.clear();
    }
    if (own) function->has_template = kept;
    if (uint32_t* failures = FailuresOf(thing, function.get())) *failures = 0;
    for (Dependency& candidate : dependencies_) {
      if (thing.kind == ThingKind::kDependencyTemplate && candidate.id == thing.owner)
        candidate.has_template = kept;
    }
    if (thing.kind == ThingKind::kDiskImage) LetTemplate(function, &later);
    // It may go for that.
    if (own && kept) LearnTemplateSize(function, *bytes, &later);
    if (!kept)
      later.steps.emplace_back([this, thing, function, dependency] { Unmake(thing, function, dependency); });
    return;
  }
  std::string again;
  if (absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status)) {
    CanNotBeMade(thing, &later);
  } else {
    again = PauseMaking(thing, function.get());
  }
  if (function && thing.kind == ThingKind::kDiskImage) {
    function->image_error = std::string(status.message());
    function->counters->problem = absl::StrCat(
        again.empty() ? "" : absl::StrCat("its image could not be made", again, ": "), status.message());
  }
  Log(LogLevel::kWarning,
      absl::StrCat(thing.kind == ThingKind::kDiskImage ? "the image of function '" : "a template of '",
                   function ? function->spec.name : dependency, "' could not be made", again, ": ",
                   status.message()));
  if (thing.kind == ThingKind::kDiskImage) LetTemplate(function, &later);
}

uint32_t* Core::FailuresOf(const Thing& thing, Function* function) {
  if (thing.kind == ThingKind::kDiskImage) return &function->image_failures;
  if (thing.kind == ThingKind::kTemplate) return &function->template_failures;
  for (Dependency& candidate : dependencies_) {
    if (thing.kind == ThingKind::kDependencyTemplate && candidate.id == thing.owner)
      return &candidate.template_failures;
  }
  return nullptr;
}

std::string Core::PauseMaking(const Thing& thing, Function* function) {
  uint32_t* failures = FailuresOf(thing, function);
  if (failures == nullptr) {
    policy_.Lost(thing);
    return "";
  }
  const uint32_t doubled = std::min((*failures)++, 20u);
  absl::Duration pause = std::min(options_.first_pause * (1 << doubled), options_.longest_pause);
  if (thing.kind == ThingKind::kDiskImage) pause = Spread(pause, thing.owner);
  policy_.Lost(thing, Now() + absl::ToInt64Microseconds(pause));
  const bool by_itself = thing.kind == ThingKind::kDiskImage && *failures <= kMostRetriesByItself;
  if (by_itself) TryImageAgainAfter(thing.owner, pause);
  return absl::StrCat(*failures > 1 ? absl::StrCat(", ", *failures, " times so far,") : "",
                      " and is tried again ", by_itself ? "" : "at the first start ", "after ",
                      absl::FormatTime("%H:%M:%S", absl::Now() + pause, absl::LocalTimeZone()));
}

void Core::TryImageAgainAfter(FunctionId function, absl::Duration pause) {
  if (stopping_) return;
  auto& timer = image_retries_.try_emplace(function, *context_).first->second;
  timer.expires_after(absl::ToChronoNanoseconds(pause));
  timer.async_wait([weak = weak_from_this(), function](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->TryImageAgain(function);
  });
}

void Core::TryImageAgain(FunctionId id) {
  Later later;
  absl::MutexLock lock(&mutex_);
  const FunctionPtr function = by_id_[id].lock();
  if (stopping_ || function == nullptr || function->replaced) return;
  image_retries_.erase(id);
  // One at a time: each loads a function, and they may all wait for the same.
  if (image_retry_) return TryImageAgainAfter(id, Spread(options_.first_pause, id));
  const Thing image{ThingKind::kDiskImage, id};
  if (policy_.Keeps(image)) return;  // a start has come first
  std::vector<Action> actions;
  policy_.TryAgain(id, Now(), &actions);
  const bool made = policy_.Keeps(image) && !function->has_image && function->spec.may_have_image;
  if (made) {
    image_retry_ = id;
  } else if (!function->counters->problem.empty()) {
    function->counters->problem = absl::StrCat(
        "its image could not be made, and is tried again at the first start that it is worth it "
        "for: ",
        function->image_error);
  }
  Apply(actions, &later);
}

void Core::EndRetry(FunctionId function) {
  absl::MutexLock lock(&mutex_);
  if (image_retry_ == function) image_retry_.reset();
}

void Core::LetImage(const FunctionPtr& function, Later* later) {
  if (!function->image_waits || AllAreStarting(*function)) return;
  const Thing image{ThingKind::kDiskImage, function->id};
  if (function->replaced || !policy_.Keeps(image)) return ForgetWaitingImage(function, later);
  function->image_waits = false;
  Apply(Action{Action::Verb::kMake, image}, later);
}

void Core::ForgetWaitingImage(const FunctionPtr& function, Later* later) {
  if (!std::exchange(function->image_waits, false)) return;
  if (image_retry_ == function->id) image_retry_.reset();
  if (!function->replaced) LetTemplate(function, later);
}

void Core::LetTemplate(const FunctionPtr& function, Later* later) {
  const Thing own{ThingKind::kTemplate, function->id};
  if (!std::exchange(function->template_waits, false) || !policy_.Keeps(own)) return;
  if (function->has_image) return Apply(Action{Action::Verb::kMake, own}, later);
  policy_.Lost(own);
}

void Core::Unmake(const Thing& thing, const FunctionPtr& function, const std::string& dependency) {
  {
    absl::MutexLock lock(&mutex_);
    if (policy_.Keeps(thing)) return;  // it is wanted again
  }
  const std::string name = function ? function->spec.name : "";
  const uint64_t revision = function ? function->spec.revision : 0;
  if (thing.kind == ThingKind::kDiskImage) return starter_.DropImage(name, revision);
  starter_.DropTemplate(name, revision, dependency);
}

void Core::LostTemplate(const std::string& dependency_image) {
  absl::MutexLock lock(&mutex_);
  DependencyTemplateIsGone(dependency_image);
}

void Core::DependencyTemplateIsGone(const std::string& image) {
  for (Dependency& candidate : dependencies_) {
    if (candidate.image != image) continue;
    candidate.has_template = false;
    policy_.Lost({ThingKind::kDependencyTemplate, candidate.id});
  }
}

void Core::ImageIsGone(const FunctionPtr& function) {
  if (function->replaced || !std::exchange(function->has_image, false)) return;
  policy_.Lost({ThingKind::kDiskImage, function->id});
}

void Core::TemplateIsGone(const FunctionPtr& function, StartLevel level) {
  if (level == StartLevel::kDependencyTemplate) {
    DependencyTemplateIsGone(function->spec.dependency_image);
  } else if (!function->replaced && std::exchange(function->has_template, false)) {
    policy_.Lost({ThingKind::kTemplate, function->id});
  }
}

void Core::TemplateIsOfNoUse(const FunctionPtr& function, Later* later) {
  if (function->replaced || !function->has_template) return;
  const Thing own{ThingKind::kTemplate, function->id};
  CanNotBeMade(own, later);
  Apply(Action{Action::Verb::kDrop, own}, later);
}

// The policy must not want again and again what never will be there: it is of no use any more.
void Core::CanNotBeMade(const Thing& thing, Later* later) {
  policy_.GiveUp(thing);
  for (auto& [name, function] : functions_) {
    FunctionProfile& profile = function->profile;
    switch (thing.kind) {
      case ThingKind::kDiskImage:
        if (function->id != thing.owner) continue;
        function->spec.may_have_image = false;
        profile.image_ms = profile.template_ms = profile.dependency_image_ms;
        profile.image_read_ms = 0;
        break;
      case ThingKind::kTemplate:
        if (function->id != thing.owner) continue;
        profile.template_ms = kNeverMs;
        break;
      case ThingKind::kDependencyTemplate:
        if (profile.dependency != thing.owner) continue;
        profile.dependency_template_ms = kNeverMs;
        break;
      default:
        continue;
    }
    std::vector<Action> actions;
    policy_.UpdateFunction(function->id, profile, Now(), &actions);
    Apply(actions, later);
  }
}

void Core::PlanTick() {
  const Micros next = policy_.NextTick();
  if (stopping_ || next == tick_at_) return;
  tick_at_ = next;
  tick_.cancel();
  if (next == INT64_MAX) return;
  tick_.expires_after(absl::ToChronoNanoseconds(absl::Microseconds(std::max<Micros>(next - Now(), 0))));
  tick_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    auto core = weak.lock();
    if (!error && core) core->Tick();
  });
}

void Core::Tick() {
  Later later;
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  std::vector<Action> actions;
  policy_.Tick(Now(), &actions);
  Apply(actions, &later);
  tick_at_ = INT64_MAX;
  PlanTick();
}

}  // namespace rekindle::functions
