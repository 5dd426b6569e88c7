#include "functions/keep_alive_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace rekindle::functions {
namespace {

using Verb = Action::Verb;

constexpr unsigned kHasTemplate = 1, kHasRam = 2, kHasDisk = 4, kHasDependencyTemplate = 8,
                   kHasDependencyRam = 16, kHasDependencyDisk = 32;
constexpr double kAnyKey = std::numeric_limits<double>::infinity();
constexpr double kNotDue = 6;       // so many times halved is the worth of an instance that is not due
constexpr double kSameKey = 0.25;   // a key that rose by less did not rise
constexpr double kFallenKey = 1;    // a key that fell by less did not fall
constexpr size_t kMaxVictims = 64;  // for one thing that nobody waits for
constexpr double kPeakSeconds = 600;

double Seconds(Micros micros) { return static_cast<double>(micros) * 1e-6; }

}  // namespace

bool KeepAlivePolicy::OnDisk(ThingKind kind) {
  return kind == ThingKind::kDiskImage || kind == ThingKind::kDependencyDisk;
}

uint64_t KeepAlivePolicy::BytesOf(const Thing& thing) const {
  switch (thing.kind) {
    case ThingKind::kInstance:
      return functions_[thing.owner].profile.instance_bytes;
    case ThingKind::kTemplate:
      return functions_[thing.owner].profile.template_bytes;
    case ThingKind::kRamImage:
      return functions_[thing.owner].profile.ram_bytes;
    case ThingKind::kDiskImage:
      return functions_[thing.owner].profile.disk_bytes;
    case ThingKind::kDependencyTemplate:
      return dependencies_[thing.owner].profile.template_bytes;
    case ThingKind::kDependencyRam:
      return dependencies_[thing.owner].profile.ram_bytes;
    case ThingKind::kDependencyDisk:
      return dependencies_[thing.owner].profile.disk_bytes;
  }
  return 0;
}

const KeepAlivePolicy::Item& KeepAlivePolicy::ItemOf(const Thing& thing) const {
  switch (thing.kind) {
    case ThingKind::kInstance:
      return functions_[thing.owner].instance;
    case ThingKind::kTemplate:
      return functions_[thing.owner].parked;
    case ThingKind::kRamImage:
      return functions_[thing.owner].ram;
    case ThingKind::kDiskImage:
      return functions_[thing.owner].disk;
    case ThingKind::kDependencyTemplate:
      return dependencies_[thing.owner].parked;
    case ThingKind::kDependencyRam:
      return dependencies_[thing.owner].ram;
    case ThingKind::kDependencyDisk:
      break;
  }
  return dependencies_[thing.owner].disk;
}

KeepAlivePolicy::Item& KeepAlivePolicy::ItemOf(const Thing& thing) {
  return const_cast<Item&>(std::as_const(*this).ItemOf(thing));
}

bool KeepAlivePolicy::Keeps(const Thing& thing) const {
  return thing.kind == ThingKind::kInstance ? functions_[thing.owner].idle > 0 : ItemOf(thing).kept;
}

// The logarithm of worth a byte, all credits faded to one moment: the order does not change as time goes by.
double KeepAlivePolicy::KeyOf(const Thing& thing) const {
  auto log_worth = [&](double value, Micros stamp) {
    return std::log2(std::max(value, 1e-6)) + Seconds(stamp) / options_.fade_seconds * M_LOG2E;
  };
  const Item* item = &ItemOf(thing);
  double worth = 0;
  if (thing.kind == ThingKind::kInstance) {
    const Function& function = functions_[thing.owner];
    if (function.idle > 1) item = &function.surplus;
    worth = log_worth(item->value, item->stamp);
    if (function.due_ms > 0 && function.idle <= 1) {
      worth = std::max(worth, log_worth(function.due_ms, function.due_stamp));
    }
    if (function.waiting) worth -= kNotDue;
  } else {
    worth = log_worth(item->value, item->stamp);
  }
  return worth - std::log2(static_cast<double>(std::max<uint64_t>(BytesOf(thing), 1)));
}

bool KeepAlivePolicy::MayGo(const Thing& thing) const {
  if (thing.kind == ThingKind::kDependencyDisk) return dependencies_[thing.owner].images == 0;
  if (thing.kind != ThingKind::kInstance) return true;
  const Function& function = functions_[thing.owner];
  return function.busy + function.idle > function.profile.provisioned;
}

double KeepAlivePolicy::Weigh(double ms) const {
  double late = (ms - 0.7 * options_.slow_start_ms) / (0.6 * options_.slow_start_ms);
  return ms + options_.slow_start_penalty_ms * std::clamp(late, 0.0, 1.0);
}

unsigned KeepAlivePolicy::KeptFor(const Function& function) const {
  const Dependency& dependency = dependencies_[function.profile.dependency];
  return (function.parked.kept ? kHasTemplate : 0) | (function.ram.kept ? kHasRam : 0) |
         (function.disk.kept ? kHasDisk : 0) | (dependency.parked.kept ? kHasDependencyTemplate : 0) |
         (dependency.ram.kept ? kHasDependencyRam : 0) | (dependency.disk.kept ? kHasDependencyDisk : 0);
}

KeepAlivePolicy::Start KeepAlivePolicy::Best(const Function& function, unsigned with) const {
  const FunctionProfile& profile = function.profile;
  const bool dependency_ram = with & kHasDependencyRam;
  const double read = dependency_ram ? 0 : dependencies_[profile.dependency].profile.read_ms;
  Start best{StartLevel::kCold, profile.cold_ms};
  auto offer = [&](StartLevel level, double ms) {
    if (ms < best.ms) best = {level, ms};
  };
  if (with & kHasDependencyDisk) {
    offer(dependency_ram ? StartLevel::kDependencyRam : StartLevel::kDependencyDisk,
          profile.dependency_image_ms + read);
    if (with & kHasDisk) {
      const bool own_ram = with & kHasRam;
      offer(own_ram && dependency_ram ? StartLevel::kImageRam : StartLevel::kImageDisk,
            profile.image_ms + read + (own_ram ? 0 : profile.image_read_ms));
    }
  }
  if (with & kHasDependencyTemplate) offer(StartLevel::kDependencyTemplate, profile.dependency_template_ms);
  if (with & kHasTemplate) offer(StartLevel::kTemplate, profile.template_ms);
  return best;
}

void KeepAlivePolicy::Credit(Item* item, double ms, Micros now) const {
  item->value =
      std::max(ms, 0.0) + item->value * std::exp(-Seconds(now - item->stamp) / options_.fade_seconds);
  item->stamp = now;
}

void KeepAlivePolicy::Enqueue(const Thing& thing) {
  Item& item = ItemOf(thing);
  double key = KeyOf(thing);
  if (item.queued) {
    if (key > item.queued_key - kFallenKey) return;
    ++item.version;
  }
  item.queued = true;
  Push(thing, key);
}

void KeepAlivePolicy::Push(const Thing& thing, double key) {
  Item& item = ItemOf(thing);
  item.queued_key = key;
  (OnDisk(thing.kind) ? disk_ : memory_)
      .Push({key, thing, item.version}, [&](const EvictionQueue::Entry& entry) {
        const Item& other = ItemOf(entry.thing);
        return !other.queued || other.version != entry.version;
      });
}

void KeepAlivePolicy::SetKept(const Thing& thing, bool kept) {
  uint64_t bytes = BytesOf(thing);
  uint64_t& used = OnDisk(thing.kind) ? usage_.disk_bytes : usage_.memory_bytes;
  used += kept ? bytes : 0 - bytes;
  if (thing.kind == ThingKind::kInstance) {
    functions_[thing.owner].idle += kept ? 1 : -1;
  } else {
    ItemOf(thing).kept = kept;
  }
  if (kept) Enqueue(thing);
  if (thing.kind == ThingKind::kDiskImage) {
    const DependencyId id = functions_[thing.owner].profile.dependency;
    Dependency& dependency = dependencies_[id];
    dependency.images += kept ? 1 : -1;
    if (dependency.images == 0 && dependency.disk.kept) Enqueue({ThingKind::kDependencyDisk, id});
  }
}

void KeepAlivePolicy::Drop(const Thing& thing, std::vector<Action>* actions) {
  SetKept(thing, false);
  actions->push_back({Verb::kDrop, thing});
  // Its pages are cached under the name of the image on disk.
  if (thing.kind == ThingKind::kDiskImage && functions_[thing.owner].ram.kept) {
    Drop({ThingKind::kRamImage, thing.owner}, actions);
  }
  if (thing.kind == ThingKind::kDependencyDisk && dependencies_[thing.owner].ram.kept) {
    Drop({ThingKind::kDependencyRam, thing.owner}, actions);
  }
}

// Drops what is worth less than `below_key` until `bytes` more fit. All or nothing, unless everything may go:
// then as far as there is something to drop.
bool KeepAlivePolicy::MakeRoom(bool disk, uint64_t bytes, double below_key, std::vector<Action>* actions) {
  EvictionQueue& queue = disk ? disk_ : memory_;
  const uint64_t& used = disk ? usage_.disk_bytes : usage_.memory_bytes;
  const uint64_t budget = disk ? options_.disk_bytes : options_.memory_bytes;
  if (bytes > budget && below_key != kAnyKey) return false;
  uint64_t freed = 0;
  bool fits = true;
  victims_.clear();
  while (used - freed + bytes > budget) {
    if (queue.empty() || (below_key != kAnyKey && victims_.size() == kMaxVictims)) {
      fits = false;
      break;
    }
    EvictionQueue::Entry entry = queue.Top();
    Item& item = ItemOf(entry.thing);
    if (item.version != entry.version || !Keeps(entry.thing) || !MayGo(entry.thing)) {
      queue.Pop();
      if (item.version == entry.version) item.queued = false;
      continue;
    }
    double key = KeyOf(entry.thing);
    if (key > entry.key + kSameKey) {
      queue.Pop();
      Push(entry.thing, key);
      continue;
    }
    if (entry.key >= below_key) {
      fits = false;
      break;
    }
    queue.Pop();
    item.queued = false;
    freed += BytesOf(entry.thing);
    victims_.push_back(entry);
    // Of one function several instances may have to go.
    if (below_key == kAnyKey) {
      Drop(entry.thing, actions);
      freed = 0;
      if (Keeps(entry.thing)) Enqueue(entry.thing);
    }
  }
  if (below_key == kAnyKey) return fits;
  for (const EvictionQueue::Entry& victim : victims_) {
    if (fits && Keeps(victim.thing)) Drop(victim.thing, actions);
    if (Keeps(victim.thing)) Enqueue(victim.thing);
  }
  return fits;
}

bool KeepAlivePolicy::Admit(const Thing& thing, double make_ms, std::vector<Action>* actions) {
  const Item& item = ItemOf(thing);
  // What may be made has just been credited.
  const bool waits = item.stamp < item.not_before;
  if (thing.kind != ThingKind::kInstance && (item.kept || waits || item.value < make_ms)) return false;
  if (!MakeRoom(OnDisk(thing.kind), BytesOf(thing), KeyOf(thing) - std::log2(options_.advantage), actions)) {
    return false;
  }
  SetKept(thing, true);
  actions->push_back({Verb::kMake, thing});
  return true;
}

void KeepAlivePolicy::AdmitImage(FunctionId id, std::vector<Action>* actions) {
  const DependencyId dependency = functions_[id].profile.dependency;
  uint32_t& images = dependencies_[dependency].images;
  ++images;  // not at the price of what it is on top of
  Admit({ThingKind::kDiskImage, id}, 0, actions);
  if (--images == 0) Enqueue({ThingKind::kDependencyDisk, dependency});
}

DependencyId KeepAlivePolicy::AddDependency(const DependencyProfile& profile, Micros now,
                                            std::vector<Action>* actions) {
  auto id = static_cast<DependencyId>(dependencies_.size());
  Dependency& dependency = dependencies_.emplace_back();
  dependency.profile = profile;
  dependency.ram.stamp = dependency.disk.stamp = dependency.parked.stamp = now;
  Admit({ThingKind::kDependencyDisk, id}, 0, actions);
  return id;
}

FunctionId KeepAlivePolicy::AddFunction(const FunctionProfile& profile, Micros now,
                                        std::vector<Action>* actions) {
  auto id = static_cast<FunctionId>(functions_.size());
  Function& function = functions_.emplace_back();
  function.profile = profile;
  for (Item* item :
       {&function.instance, &function.surplus, &function.ram, &function.disk, &function.parked}) {
    item->stamp = now;
  }
  function.peak_stamp = function.idle_since = now;
  for (uint32_t i = 0; i < profile.provisioned; ++i) {
    MakeRoom(false, profile.instance_bytes, kAnyKey, actions);
    SetKept({ThingKind::kInstance, id}, true);
    actions->push_back({Verb::kMake, {ThingKind::kInstance, id}});
  }
  return id;
}

void KeepAlivePolicy::UpdateFunction(FunctionId id, const FunctionProfile& profile, Micros now,
                                     std::vector<Action>* actions) {
  Function& function = functions_[id];
  auto held = [&] {
    const FunctionProfile& p = function.profile;
    return std::pair<uint64_t, uint64_t>(p.instance_bytes * (function.idle + function.busy) +
                                             (function.parked.kept ? p.template_bytes : 0) +
                                             (function.ram.kept ? p.ram_bytes : 0),
                                         function.disk.kept ? p.disk_bytes : 0);
  };
  auto [memory, disk] = held();
  usage_.busy_bytes -= function.profile.instance_bytes * function.busy;
  DependencyId dependency = function.profile.dependency;
  function.profile = profile;
  function.profile.dependency = dependency;
  usage_.busy_bytes += profile.instance_bytes * function.busy;
  usage_.memory_bytes += held().first - memory;
  usage_.disk_bytes += held().second - disk;
  for (ThingKind kind :
       {ThingKind::kInstance, ThingKind::kTemplate, ThingKind::kRamImage, ThingKind::kDiskImage}) {
    if (Keeps({kind, id})) Enqueue({kind, id});
  }
  MakeRoom(false, 0, kAnyKey, actions);
  MakeRoom(true, 0, kAnyKey, actions);
  while (function.busy + function.idle < profile.provisioned) {
    MakeRoom(false, profile.instance_bytes, kAnyKey, actions);
    SetKept({ThingKind::kInstance, id}, true);
    function.idle_since = now;
    actions->push_back({Verb::kMake, {ThingKind::kInstance, id}});
  }
}

void KeepAlivePolicy::RemoveFunction(FunctionId id, std::vector<Action>* actions) {
  Function& function = functions_[id];
  while (function.idle > 0) Drop({ThingKind::kInstance, id}, actions);
  for (ThingKind kind : {ThingKind::kTemplate, ThingKind::kRamImage, ThingKind::kDiskImage}) {
    if (Keeps({kind, id})) Drop({kind, id}, actions);
  }
  ++function.timer_version;
  function.idle_times.reset();
  function.removed = true;
}

// What each thing saves, or would have saved, this start, which no idle instance serves; then what has become
// worth making. A start also reads the pages that it needs and loads what can be captured: that much is made
// anyway.
void KeepAlivePolicy::CreditAll(FunctionId id, unsigned kept, Micros now, std::vector<Action>* actions) {
  Function& function = functions_[id];
  const FunctionProfile profile = function.profile;
  Dependency& dependency = dependencies_[profile.dependency];
  auto credit = [&](Item* item, unsigned bit) {
    Credit(item, Weigh(Best(function, kept & ~bit).ms) - Weigh(Best(function, kept | bit).ms), now);
  };
  credit(&function.parked, kHasTemplate);
  credit(&function.disk, kHasDisk);
  credit(&function.ram, kHasRam);
  credit(&dependency.parked, kHasDependencyTemplate);
  credit(&dependency.ram, kHasDependencyRam);
  credit(&dependency.disk, kHasDependencyDisk);

  Admit({ThingKind::kDependencyDisk, profile.dependency}, 0, actions);
  if (dependency.disk.kept) {
    AdmitImage(id, actions);
    Admit({ThingKind::kDependencyRam, profile.dependency}, dependency.profile.read_ms, actions);
    Admit({ThingKind::kDependencyTemplate, profile.dependency}, dependency.profile.make_template_ms, actions);
  }
  if (function.disk.kept) {
    Admit({ThingKind::kRamImage, id}, profile.image_read_ms, actions);
    Admit({ThingKind::kTemplate, id}, profile.image_ms, actions);
  }
}

double KeepAlivePolicy::Peak(const Function& function, Micros now) const {
  return std::max<double>(function.busy,
                          function.peak * std::exp(-Seconds(now - function.peak_stamp) / kPeakSeconds));
}

StartDecision KeepAlivePolicy::Arrived(FunctionId id, Micros now, std::vector<Action>* actions) {
  Function& function = functions_[id];
  if (function.busy == 0 && function.was_idle) {
    Micros idle = now - function.idle_since;
    if (!function.idle_times && idle >= 120'000'000) function.idle_times = std::make_unique<IdleHistogram>();
    if (function.idle_times) function.idle_times->Record(idle);
  }
  ++function.timer_version;
  function.waiting = false;
  function.due_ms = 0;
  const unsigned kept = KeptFor(function);
  const Start start = Best(function, kept);
  Credit(function.busy == 0 ? &function.instance : &function.surplus,
         Weigh(start.ms) - Weigh(function.profile.warm_ms), now);
  StartDecision decision{start.level, start.ms, false};
  const uint64_t bytes = function.profile.instance_bytes;
  if (function.idle > 0) {
    --function.idle;
    decision.level = StartLevel::kInstance;
    decision.expected_ms = function.profile.warm_ms;
  } else {
    CreditAll(id, kept, now, actions);
    decision.over_budget = !MakeRoom(false, bytes, kAnyKey, actions);
    usage_.memory_bytes += bytes;
  }
  ++function.busy;
  usage_.busy_bytes += bytes;
  if (function.busy >= function.peak || (function.busy > 1 && function.busy >= Peak(function, now))) {
    function.peak = static_cast<float>(function.busy);
    function.peak_stamp = now;
  }
  return decision;
}

void KeepAlivePolicy::BecameIdle(FunctionId id, Micros now, std::vector<Action>* actions) {
  Function& function = functions_[id];
  const Thing instance{ThingKind::kInstance, id};
  --function.busy;
  ++function.idle;
  usage_.busy_bytes -= function.profile.instance_bytes;
  if (function.busy == 0) {
    function.idle_since = now;
    function.was_idle = true;
  }
  if (function.removed) return Drop(instance, actions);
  if (function.idle > 1 && MayGo(instance) &&
      function.busy + function.idle > std::ceil(Peak(function, now))) {
    Drop(instance, actions);
  }
  if (function.busy == 0) PlanIdle(id, now);
  if (function.idle > 0) Enqueue(instance);
  if (usage_.memory_bytes > options_.memory_bytes) MakeRoom(false, 0, kAnyKey, actions);
}

void KeepAlivePolicy::PlanIdle(FunctionId id, Micros now) {
  Function& function = functions_[id];
  if (!function.limit_pending) {
    function.limit_pending = true;
    timers_.push({now + std::llround(options_.idle_limit_seconds * 1e6), id, 0, TimerKind::kLimit});
  }
  if (!function.idle_times || !function.idle_times->Predicted()) return;
  const IdleHistogram::Window& window = *function.idle_times->Predicted();
  timers_.push({now + window.open, id, function.timer_version, TimerKind::kOpen});
  timers_.push({now + window.close, id, function.timer_version, TimerKind::kClose});
  function.waiting = true;
}

void KeepAlivePolicy::OnTimer(const Timer& timer, std::vector<Action>* actions) {
  Function& function = functions_[timer.function];
  const Thing instance{ThingKind::kInstance, timer.function};
  if (timer.kind == TimerKind::kLimit) {
    const Micros due = function.idle_since + std::llround(options_.idle_limit_seconds * 1e6);
    function.limit_pending = (function.busy > 0 || function.idle > 0) && !function.removed;
    if (!function.limit_pending) return;
    if (function.busy > 0 || due > timer.when) {
      timers_.push({std::max(due, timer.when + 60'000'000), timer.function, 0, TimerKind::kLimit});
      return;
    }
    while (function.idle > 0 && MayGo(instance)) Drop(instance, actions);
    function.limit_pending = false;
    return;
  }
  if (timer.version != function.timer_version || function.busy > 0) return;
  if (timer.kind == TimerKind::kClose) {
    function.waiting = true;
    function.due_ms = 0;
    if (function.idle > 0) Enqueue(instance);
    return;
  }
  // One arrival within the window: as much as credits at that rate would have come to.
  const IdleHistogram::Window& window = *function.idle_times->Predicted();
  double saves = Weigh(Best(function, KeptFor(function)).ms) - Weigh(function.profile.warm_ms);
  function.waiting = false;
  function.due_ms = static_cast<float>(saves * options_.fade_seconds / Seconds(window.close - window.open));
  function.due_stamp = timer.when;
  if (function.idle == 0 && Admit(instance, 0, actions) && !function.limit_pending) {
    function.limit_pending = true;
    timers_.push(
        {timer.when + std::llround(options_.idle_limit_seconds * 1e6), timer.function, 0, TimerKind::kLimit});
  }
}

void KeepAlivePolicy::Tick(Micros now, std::vector<Action>* actions) {
  while (!timers_.empty() && timers_.top().when <= now) {
    Timer timer = timers_.top();
    timers_.pop();
    OnTimer(timer, actions);
  }
}

void KeepAlivePolicy::Ended(FunctionId id) {
  Function& function = functions_[id];
  --function.busy;
  usage_.busy_bytes -= function.profile.instance_bytes;
  usage_.memory_bytes -= function.profile.instance_bytes;
}

void KeepAlivePolicy::Lost(const Thing& thing) {
  if (Keeps(thing)) SetKept(thing, false);
}

void KeepAlivePolicy::Lost(const Thing& thing, Micros until) {
  Lost(thing);
  ItemOf(thing).not_before = until;
}

void KeepAlivePolicy::TryAgain(FunctionId id, Micros now, std::vector<Action>* actions) {
  Function& function = functions_[id];
  if (function.removed || !dependencies_[function.profile.dependency].disk.kept) return;
  Credit(&function.disk, 0, now);
  AdmitImage(id, actions);
}

void KeepAlivePolicy::GiveUp(const Thing& thing) {
  Lost(thing);
  ItemOf(thing).value = 0;
}

}  // namespace rekindle::functions
