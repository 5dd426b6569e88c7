// Who gets an instance when there are fewer than callers want: owners take turns by how many each has.
#include <algorithm>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "functions/scheduler_core.h"
#include "functions/scheduler_instance.h"

namespace rekindle::functions {
namespace {

// One that has been told to end makes room within this; later it is not reckoned with.
constexpr absl::Duration kSoonGone = absl::Seconds(1);
constexpr uint32_t kRoot = 0;
// Of the limit of an instance whose size is not known: what it is taken to need. Most need less.
constexpr uint64_t kUnknownPart = 4;

}  // namespace

using Core = Scheduler::Core;

uint64_t Core::MostInstancesOf(uint32_t owner) const {
  return owner == kRoot ? options_.most_instances : options_.most_instances - options_.most_instances / 10;
}

uint32_t Core::LivingOf(uint32_t owner) const {
  auto found = living_of_.find(owner);
  return found == living_of_.end() ? 0 : found->second;
}

bool Core::MayHaveMore(const Function& function) const {
  const uint32_t most = function.spec.most_instances;
  return most == 0 || function.counters->living < most;
}

bool Core::HasTooMany(const Function& function) const {
  if (function.replaced || MayHaveMore(function)) return false;
  const auto going = std::count_if(ending_.begin(), ending_.end(), [&](const InstancePtr& instance) {
    return instance->function->counters == function.counters;
  });
  if (function.counters->living <= function.spec.most_instances + static_cast<uint64_t>(going)) return false;
  // One that is only being started is in no loaded one's place: it goes when it is ready.
  const auto loaded = std::count_if(instances_.begin(), instances_.end(), [&](const InstancePtr& instance) {
    return instance->function->counters == function.counters && IsLoaded(*instance);
  });
  return static_cast<uint64_t>(loaded) > function.spec.most_instances;
}

bool Core::AllAreStarting(const Function& function) const {
  return function.starting > 0 &&
         std::none_of(function.instances.begin(), function.instances.end(),
                      [](const InstancePtr& instance) { return IsLoaded(*instance); });
}

bool Core::IsLoaded(const Instance& instance) {
  return instance.state != Instance::State::kStarting && instance.state != Instance::State::kEnding;
}

void Core::EndSurplus(Function& function) {
  while (!function.idle.empty() && HasTooMany(function)) {
    InstancePtr instance = function.idle.front();
    function.idle.erase(function.idle.begin());
    policy_.Lost({ThingKind::kInstance, function.id});
    EndInstance(instance);
  }
}

bool Core::OwnerMayHaveMore(uint32_t owner) const {
  return owner == kRoot || LivingOf(owner) < MostInstancesOf(owner);
}

void Core::NoteWaiting(Function& function) {
  if (function.waiting.empty()) {
    if (Find(function.spec.name).get() == &function)
      waiting_.erase({function.spec.owner, function.spec.name});
    return;
  }
  // Of an older revision none wait: its calls are those of its successor.
  if (FunctionPtr present = Find(function.spec.name); present.get() == &function)
    waiting_.try_emplace({function.spec.owner, function.spec.name}, std::move(present));
}

void Core::NoteProvisioned(const FunctionPtr& function) {
  if (function->spec.provisioned == 0) {
    provisioned_.erase(function->spec.name);
  } else {
    provisioned_[function->spec.name] = function;
  }
}

void Core::ForgetWants(const Function& function) {
  waiting_.erase({function.spec.owner, function.spec.name});
  provisioned_.erase(function.spec.name);
}

template <typename Visit>
void Core::ForEachThatMayWant(Visit visit) const {
  for (const auto& [owner_and_name, function] : waiting_) visit(function);
  for (const auto& [name, function] : provisioned_) {
    if (function->waiting.empty()) visit(function);
  }
}

uint64_t Core::StandingBytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, function] : provisioned_) {
    const uint32_t busy = policy_.Busy(function->id), provisioned = function->spec.provisioned;
    if (busy < provisioned)
      bytes += std::min(policy_.Idle(function->id), provisioned - busy) * function->profile.instance_bytes;
  }
  for (const InstancePtr& instance : ending_) bytes += instance->function->profile.instance_bytes;
  for (const FunctionId id : grow_at_work_) {
    if (const FunctionPtr function = by_id_[id].lock())
      bytes += policy_.Busy(id) * (LikelyBytes(*function) - function->profile.instance_bytes);
  }
  return bytes;
}

uint64_t Core::LikelyBytes(const Function& function) {
  const uint64_t guessed = function.profile.instance_bytes;
  return std::max(guessed,
                  function.size_known ? function.work_bytes : function.spec.memory_bytes / kUnknownPart);
}

bool Core::WaitsForItsFirst(const Function& function) const {
  return function.instances.empty() && MayHaveMore(function) && CallsWithoutInstance(function) > 0;
}

bool Core::FirstOnesFit(uint32_t owner, uint64_t bytes) const {
  uint64_t wanted = 0;
  for (auto it = waiting_.lower_bound({owner, ""});
       it != waiting_.end() && it->first.first == owner && wanted <= bytes; ++it) {
    if (WaitsForItsFirst(*it->second)) wanted += LikelyBytes(*it->second);
  }
  return wanted <= bytes;
}

bool Core::HasMemoryFor(const Function& function, uint64_t standing_bytes) const {
  // Those that are always to be there have had their memory set aside; and everybody gets on, if slowly.
  const uint64_t all_busy = policy_.usage().busy_bytes;
  if (all_busy == 0 || LivingOf(function.spec.owner) == 0 || LacksProvisioned(function)) return true;
  // Not measured yet, all that are started at once could take far more than was guessed.
  const uint64_t guessed = function.profile.instance_bytes, bytes = LikelyBytes(function);
  const uint64_t not_measured = function.size_known ? 0 : policy_.Busy(function.id) * (bytes - guessed);
  const uint64_t taken = all_busy + not_measured + standing_bytes + bytes,
                 most = options_.keep_alive.memory_bytes;
  const bool has =
      taken <= most && (function.instances.empty() || FirstOnesFit(function.spec.owner, most - taken));
  if (!has) memory_is_waited_for_ = true;
  return has;
}

bool Core::MayStart(const Function& function) const {
  return MayHaveMore(function) && OwnerMayHaveMore(function.spec.owner) &&
         instances_.size() < options_.most_instances && HasMemoryFor(function, StandingBytes());
}

bool Core::LacksProvisioned(const Function& function) const {
  return !function.replaced &&
         policy_.Idle(function.id) + policy_.Busy(function.id) < function.spec.provisioned;
}

uint64_t Core::CallsWithoutInstance(const Function& function) const {
  // Some may have one that comes already.
  const uint64_t calls = function.queue.size() + function.waiting.size();
  return std::min<uint64_t>(calls - std::min<uint64_t>(calls, function.starting), function.waiting.size());
}

uint64_t Core::Wants(const Function& function) const {
  if (!MayHaveMore(function)) return 0;
  if (const uint64_t calls = CallsWithoutInstance(function); calls > 0) return calls;
  // One that can't be started is tried now and then, which nobody has to make room for.
  return LacksProvisioned(function) && function.failures <= 1 ? 1 : 0;
}

bool Core::MayHaveThatOf(const Function& giver, const Function& function) const {
  const uint32_t owner = function.spec.owner;
  const bool all = instances_.size() >= options_.most_instances, more = OwnerMayHaveMore(owner);
  if (owner != giver.spec.owner) return all && more;
  return &function != &giver && (all || !more);
}

Core::FunctionPtr Core::NextInTurn(const Function* giver, const std::set<const Function*>& without) const {
  const bool all = instances_.size() >= options_.most_instances;
  if (giver && !all && OwnerMayHaveMore(giver->spec.owner)) return nullptr;  // it is in nobody's way
  const uint64_t standing_bytes = giver ? 0 : StandingBytes();
  FunctionPtr next;
  // The owner with the fewest instances; callers before events, and these before what is to be there for
  // some; who has waited longest.
  enum Kind { kCallers, kEvents, kProvisioned };
  using Turn = std::tuple<uint32_t, Kind, absl::Time>;
  Turn first;
  ForEachThatMayWant([&](const FunctionPtr& function) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (without.contains(function.get()) || Wants(*function) == 0) return;
    if (giver ? !MayHaveThatOf(*giver, *function)
              : !OwnerMayHaveMore(function->spec.owner) || !HasMemoryFor(*function, standing_bytes)) {
      return;
    }
    const bool calls = CallsWithoutInstance(*function) > 0;
    const Turn turn(LivingOf(function->spec.owner),
                    !calls                             ? kProvisioned
                    : function->waiting.callers() == 0 ? kEvents
                                                       : kCallers,
                    calls ? function->waiting.front()->arrived : absl::InfinitePast());
    if (next && !(turn < first)) return;
    next = function;
    first = turn;
  });
  return next;
}

void Core::ServeInTurn(Later* later) {
  memory_is_waited_for_ = false;  // unless it is seen here that it is
  std::set<const Function*> filled;
  while (instances_.size() < options_.most_instances) {
    FunctionPtr next = NextInTurn(nullptr, filled);
    if (next == nullptr) return;
    if (CallsWithoutInstance(*next) > 0) {
      ServeFirst(next, later);
    } else {
      filled.insert(next.get());
      FillProvisioned(next, later);
    }
  }
}

bool Core::OwesItsOwnOwner(const Function& function) const {
  if (!memory_is_waited_for_) return false;
  const absl::Time recent = SteadyNow() - kSoonGone;
  uint32_t here = 0, going = 0, wanted = 0;
  for (const InstancePtr& instance : function.instances) {
    if (instance->state != Instance::State::kEnding) {
      ++here;
    } else if (instance->ending_since >= recent) {
      ++going;
    }
  }
  for (auto it = waiting_.lower_bound({function.spec.owner, ""});
       it != waiting_.end() && it->first.first == function.spec.owner && wanted <= going; ++it) {
    const Function& other = *it->second;
    if (!WaitsForItsFirst(other)) continue;
    // Its last one goes to who has waited longer: else it would be handed to and fro at each call.
    if (here > 1 || other.waiting.front()->arrived < function.waiting.front()->arrived) ++wanted;
  }
  return going < wanted;
}

bool Core::OwesAnInstance(const Function& function) const {
  const bool all = instances_.size() >= options_.most_instances || memory_is_waited_for_;
  if (!all || function.instances.size() <= function.spec.provisioned) return false;
  if (OwesItsOwnOwner(function)) return true;
  uint64_t wanted = 0;
  uint32_t fewest = UINT32_MAX;
  const uint32_t owner = function.spec.owner, own = LivingOf(owner);
  ForEachThatMayWant([&](const FunctionPtr& other) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const uint32_t living = LivingOf(other->spec.owner);
    // So that two who have about as many don't hand one to and fro.
    if (other->spec.owner == owner || (living > 0 && living + 1 >= own)) return;
    const uint64_t wants = Wants(*other);
    if (wants == 0) return;
    wanted += wants;
    fewest = std::min(fewest, living);
  });
  if (wanted == 0) return false;
  // What goes anyhow is room for others too.
  const absl::Time recent = SteadyNow() - kSoonGone;
  uint32_t going = 0, own_going = 0;
  for (const InstancePtr& instance : ending_) {
    if (instance->ending_since < recent) continue;
    ++going;
    if (instance->function->spec.owner == owner) ++own_going;
  }
  if (going == 0) return true;
  return going < wanted && fewest + going + 1 < own - own_going;
}

void Core::MakeRoomFor(const Function& asking) {
  if (!MayHaveMore(asking)) return;
  const uint32_t owner = asking.spec.owner;
  const bool of_its_own = !OwnerMayHaveMore(owner);
  if (!of_its_own && instances_.size() < options_.most_instances) return;
  // Of those who have as many as the one who asks, if there are any; the one that was idle longest.
  using Rank = std::pair<bool, absl::Time>;
  FunctionPtr whose;
  Rank first;
  // There are fewer instances than there may be functions.
  for (const InstancePtr& instance : instances_) {
    const FunctionPtr& function = instance->function;
    if (function->idle.empty() || function->idle.front() != instance || function->replaced ||
        function->superseded || function->instances.size() <= function->spec.provisioned) {
      continue;
    }
    if (of_its_own && function->spec.owner != owner) continue;
    const Rank rank(LivingOf(function->spec.owner) < LivingOf(owner), instance->idle_since);
    if (whose && !(rank < first)) continue;
    whose = function;
    first = rank;
  }
  if (!whose) return;
  InstancePtr instance = whose->idle.front();
  whose->idle.erase(whose->idle.begin());
  policy_.Lost({ThingKind::kInstance, whose->id});
  EndInstance(instance);
}

}  // namespace rekindle::functions
