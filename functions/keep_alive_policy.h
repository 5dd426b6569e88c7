// What is kept of each function, and at which level: running instance, template, image in RAM, image on disk,
// nothing.
//
// One rule for everything that can be kept: its worth is the time that it saves at starts, in milliseconds a
// byte. At each arrival every thing, kept or not, is credited with what its being there saves or would have
// saved this start, given what else is kept: an idle instance with all of it, a template with what is left
// when there is none, and so on. A thing of a dependency image so collects the credits of all functions that
// share it, and nothing is paid for twice. Credits fade with a time constant. When memory (or disk) is short,
// what is worth least a byte goes; a thing that is not there is made when it is worth clearly more than what
// would have to go, and more than the work of making it.
//
// Sources. Cost and frequency over size: GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998), for instances
// in FaasCache (Fuerst and Sharma, ASPLOS 2021). Instead of GreedyDual's clock, which ages by evictions,
// credits fade by time, and with forward decay (Cormode, Shkapenyuk, Srivastava, Xu, ICDE 2009) the order of
// two things changes only when one of them is credited, so an event costs O(log n), amortized. When an
// instance is due: histograms of idle times (idle_histogram.h).
//
// Pure: no input or output, no clock, no threads, no randomness; the same calls give the same answers. Not
// thread-safe. The caller tells what happens and does what the answers say. The policy counts a thing as
// made, or as dropped, at once; what could not be made, or was lost, is told with Lost.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

#include "functions/eviction_queue.h"
#include "functions/idle_histogram.h"
#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

struct KeepAliveOptions {
  uint64_t memory_bytes = 0;
  uint64_t disk_bytes = UINT64_MAX;
  double fade_seconds = 4 * 3600;  // credits lose 63 % in this time
  // A start that takes longer than this counts `slow_start_penalty_ms` more (in steps around it, because a
  // start takes longer than expected at times).
  double slow_start_ms = 100, slow_start_penalty_ms = 1000;
  double advantage = 1.5;  // what is to replace something must be worth so many times as much
  double idle_limit_seconds =
      4 * 3600;  // an instance that nobody needed for so long goes, however much room there is
};

class KeepAlivePolicy {
 public:
  struct Usage {
    uint64_t memory_bytes = 0, disk_bytes = 0;
    uint64_t busy_bytes = 0;  // of memory_bytes
  };

  explicit KeepAlivePolicy(const KeepAliveOptions& options) : options_(options) {}

  // Ids count from 0. A dependency's image is on disk from the beginning, if there is room.
  DependencyId AddDependency(const DependencyProfile& profile, Micros now, std::vector<Action>* actions);
  // Its own image is captured at its first start.
  FunctionId AddFunction(const FunctionProfile& profile, Micros now, std::vector<Action>* actions);
  // Sizes and costs as measured meanwhile; the dependency stays.
  void UpdateFunction(FunctionId function, const FunctionProfile& profile, Micros now,
                      std::vector<Action>* actions);
  // Everything of it is dropped; instances still busy are told about with Ended.
  void RemoveFunction(FunctionId function, std::vector<Action>* actions);

  // `actions` are appended to.
  StartDecision Arrived(FunctionId function, Micros now, std::vector<Action>* actions);
  // A busy instance has answered and can be used again; or it is gone.
  void BecameIdle(FunctionId function, Micros now, std::vector<Action>* actions);
  void Ended(FunctionId function);
  // To be called at NextTick() or later, and before other calls for a later time, so that what is due is made
  // in time.
  void Tick(Micros now, std::vector<Action>* actions);
  Micros NextTick() const { return timers_.empty() ? INT64_MAX : timers_.top().when; }
  // What was said to be kept is not there: it could not be made, or died. An instance: an idle one.
  void Lost(const Thing& thing);
  // The same of what may be there another time: it is not wanted again before `until`.
  void Lost(const Thing& thing, Micros until);
  // The time of Lost is up: a function's image may be made, as at a start, though none comes.
  void TryAgain(FunctionId function, Micros now, std::vector<Action>* actions);
  // The same as Lost of what never can be: what it would have saved is forgotten.
  void GiveUp(const Thing& thing);

  bool Keeps(const Thing& thing) const;
  uint32_t Idle(FunctionId function) const { return functions_[function].idle; }
  uint32_t Busy(FunctionId function) const { return functions_[function].busy; }
  const Usage& usage() const { return usage_; }

 private:
  // Worth and place in the queue of one thing. `value` is in milliseconds, as of `stamp`.
  struct Item {
    double value = 0;
    Micros stamp = 0;
    Micros not_before = 0;  // it is made
    double queued_key = 0;
    uint32_t version = 0;
    bool kept = false, queued = false;
  };
  struct Function {
    FunctionProfile profile;
    Item instance, surplus, ram, disk, parked;  // `parked`: the template
    uint32_t busy = 0, idle = 0;
    float peak = 0;  // of instances busy at once, fading
    Micros peak_stamp = 0, idle_since = 0;
    uint32_t timer_version = 0;
    float due_ms = 0;  // as a credit of `due_stamp`: worth of an instance while one is due
    Micros due_stamp = 0;
    bool was_idle = false;       // idle_since says something
    bool waiting = false;        // none is due yet, or any more
    bool limit_pending = false;  // a timer for the idle limit runs
    bool removed = false;
    std::unique_ptr<IdleHistogram> idle_times;
  };
  struct Dependency {
    DependencyProfile profile;
    Item ram, disk, parked;
    uint32_t images = 0;  // function images on disk, which are nothing without its own
  };
  enum class TimerKind : uint8_t { kOpen, kClose, kLimit };
  struct Timer {
    Micros when = 0;
    FunctionId function = 0;
    uint32_t version = 0;
    TimerKind kind = TimerKind::kOpen;
    bool operator>(const Timer& other) const {
      return when != other.when           ? when > other.when
             : function != other.function ? function > other.function
                                          : kind > other.kind;
    }
  };
  struct Start {
    StartLevel level = StartLevel::kCold;
    double ms = 0;
  };

  static bool OnDisk(ThingKind kind);
  uint64_t BytesOf(const Thing& thing) const;
  Item& ItemOf(const Thing& thing);
  const Item& ItemOf(const Thing& thing) const;
  double KeyOf(const Thing& thing) const;
  bool MayGo(const Thing& thing) const;
  double Weigh(double ms) const;
  Start Best(const Function& function, unsigned with) const;
  unsigned KeptFor(const Function& function) const;
  void Credit(Item* item, double ms, Micros now) const;
  void CreditAll(FunctionId id, unsigned kept, Micros now, std::vector<Action>* actions);
  void Enqueue(const Thing& thing);
  void Push(const Thing& thing, double key);
  void SetKept(const Thing& thing, bool kept);
  void Drop(const Thing& thing, std::vector<Action>* actions);
  bool MakeRoom(bool disk, uint64_t bytes, double below_key, std::vector<Action>* actions);
  void AdmitImage(FunctionId id, std::vector<Action>* actions);
  bool Admit(const Thing& thing, double make_ms, std::vector<Action>* actions);
  double Peak(const Function& function, Micros now) const;
  void PlanIdle(FunctionId id, Micros now);
  void OnTimer(const Timer& timer, std::vector<Action>* actions);

  const KeepAliveOptions options_;
  std::vector<Function> functions_;
  std::vector<Dependency> dependencies_;
  EvictionQueue memory_, disk_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  Usage usage_;
  std::vector<EvictionQueue::Entry> victims_;
};

}  // namespace rekindle::functions
