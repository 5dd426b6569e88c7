// The scheduler's state. Shared by its callbacks: each looks first whether there still is one.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/fair_threads.h"
#include "functions/call_queue.h"
#include "functions/latency_sample.h"
#include "functions/runtime_api.h"
#include "functions/scheduler.h"
#include "functions/shares.h"

namespace rekindle::functions {

class Scheduler::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const SchedulerOptions& options, InstanceStarter& starter, HttpThreads& threads);
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<Reservation> ReserveProvisioned(const ScheduledFunction& function)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(uint64_t reservation) ABSL_LOCKS_EXCLUDED(mutex_);
  void Put(const ScheduledFunction& function) ABSL_LOCKS_EXCLUDED(mutex_);
  void Adjust(const ScheduledFunction& function) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<StartTimes> Times() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Remove(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);
  void LostTemplate(const std::string& dependency_image) ABSL_LOCKS_EXCLUDED(mutex_);
  // `own`: the same call, whose payload may be moved away; null: an event, which others hold.
  void Invoke(std::shared_ptr<const Call> call, std::shared_ptr<Call> own, Done done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<FunctionNumbers> Numbers(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One call, from its arrival to its end.
  struct Request {
    std::shared_ptr<const Call> call;
    std::shared_ptr<Call> own;  // the same; null: an event's
    bool event = false;
    Done done;
    bool gone() const { return call->gone && call->gone(); }
    std::shared_ptr<void> room;  // of what its owner's calls that wait may have
    absl::Time arrived;
    absl::Time begun;                            // with an instance
    std::shared_ptr<const std::string> payload;  // since then
    std::shared_ptr<std::atomic<bool>> taken;    // Invocation::taken, of the instance that it is with
    uint32_t taken_back = 0;                     // from instances that ended before they had it
  };
  class Instance;
  // Over all revisions.
  struct Counters {
    // Of calls that have got an instance, or have failed for want of one. They only grow.
    uint64_t invocations = 0, errors = 0, timeouts = 0, throttles = 0;
    LatencySample durations;
    std::array<LatencySample, kStartLevels> starts;
    std::string problem;
    std::string cold;     // why the last start was from nothing, though there should be an image
    uint32_t living = 0;  // instances whose process has not ended, and those being started
  };
  struct Function {
    ScheduledFunction spec;
    FunctionId id = 0;
    std::shared_ptr<Counters> counters;
    bool replaced = false;                  // or removed: nothing is started for it any more
    bool superseded = false;                // as `replaced`, but what is idle of it takes calls for now
    std::shared_ptr<Function> predecessor;  // which is, and whose successor this one is
    bool has_image = false, has_template = false;
    bool template_waits = false;  // for the image, which is being taken
    bool image_waits = false;     // for the first instance, which is being started
    std::string image_error;      // of the last attempt that failed
    bool size_known = false, template_size_known = false;
    FunctionProfile profile;
    // What its profile says of them is no guess any more.
    bool template_timed = false, image_timed = false, dependency_template_timed = false,
         dependency_image_timed = false, cold_timed = false;
    uint32_t starting = 0;    // instances, ahead of time or not; at least one for each of `queue`
    uint64_t work_bytes = 0;  // what one takes at work, as far as is known
    uint32_t failures = 0;    // starts that came to nothing since the last answer
    uint32_t image_failures = 0, template_failures = 0;  // the same, of making them, since it last succeeded
    uint32_t drops_owed = 0;                             // the next ones that are idle go
    CallQueue<Request> queue;                            // an instance is being started for each
    // For one that becomes free: no more may be started. NoteWaiting is told of each change.
    CallQueue<Request> waiting;
    std::vector<std::shared_ptr<Instance>> idle;  // the last one used last
    std::set<std::shared_ptr<Instance>> instances;
  };
  struct Dependency {
    std::string image;
    DependencyId id = 0;
    bool has_template = false;
    uint32_t template_failures = 0;
  };
  // What instances that are always to be there may take.
  struct Provisioned {
    uint64_t instances = 0, bytes = 0;
    uint32_t owner = 0;
    void RaiseTo(const ScheduledFunction& function);
  };
  // To be done without the lock.
  struct Later {
    std::vector<std::function<void()>> steps;
    ~Later() {
      for (auto& step : steps) step();
    }
  };
  using FunctionPtr = std::shared_ptr<Function>;
  using InstancePtr = std::shared_ptr<Instance>;
  using RequestPtr = std::shared_ptr<Request>;

  friend class Instance;
  void OnReady(const InstancePtr& instance) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnInitError(const InstancePtr& instance, const std::string& type, const std::string& body)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswer(const InstancePtr& instance, const std::string& request_id, Answer answer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnd(const InstancePtr& instance, const InstanceEnd& end) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTimeout(const InstancePtr& instance, const std::string& request_id) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnStartTimeout(const InstancePtr& instance) ABSL_LOCKS_EXCLUDED(mutex_);
  // The rest of its image begins to be filled in.
  void OnFilling(const InstancePtr& instance) ABSL_LOCKS_EXCLUDED(mutex_);
  // Measured when it has had the time for that.
  void AwaitFilled(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnFilled(const InstancePtr& instance) ABSL_LOCKS_EXCLUDED(mutex_);

  // All but the memory, which is to be asked of `processes`.
  absl::StatusOr<FunctionNumbers> NumbersBut(const std::string& name,
                                             std::vector<std::shared_ptr<InstanceProcess>>* processes) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckProvisioned(const ScheduledFunction& function) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Micros Now() const;
  void Dispatch(const FunctionPtr& function, RequestPtr request, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStart(const FunctionPtr& function, StartLevel level) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a thread of the pool.
  void Start(const FunctionPtr& function, const InstancePtr& instance, StartLevel level)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<StartLevel> LevelsFrom(const Function& function, StartLevel level) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One that was being started will not come. Returns the call that is without one now; null: it was started
  // ahead of time.
  RequestPtr LoseStart(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There is no process, and who waits for it hears that the node has failed.
  void StartFailed(const FunctionPtr& function, const InstancePtr& instance, const absl::Status& why,
                   Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The function can't be loaded: who waits for it hears that, and its log says so.
  void FailStart(const InstancePtr& instance, const std::string& error_json, StartFailure failure,
                 Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An instance was lost: those that are always to be there are made again.
  void Refill(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefillNow(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Assign(const FunctionPtr& function, const InstancePtr& instance, const RequestPtr& request,
              Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It can take the next call.
  void BecameFree(const FunctionPtr& function, const InstancePtr& instance, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the call off the instance, and says of both what there is to say.
  RequestPtr Finish(const InstancePtr& instance, CallResult* result, InvocationOutcome* outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The call that an instance ended with, or is to end with, is another one's, as it has never been given to
  // that. False: it was, or too many have ended with it.
  bool TakeBack(const InstancePtr& instance, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishBadly(const InstancePtr& instance, std::string error_json, std::string problem, bool timed_out,
                   Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CanNotBeMade(const Thing& thing, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One that is made: how often that has failed in a row. Null: nobody counts.
  uint32_t* FailuresOf(const Thing& thing, Function* function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It could not be made now, and is tried again after a pause; returns when, for people.
  std::string PauseMaking(const Thing& thing, Function* function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A function's image, without a call that starts an instance. `pause`: until then.
  void TryImageAgainAfter(FunctionId function, absl::Duration pause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TryImageAgain(FunctionId function) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of its image, if it was one.
  void EndRetry(FunctionId function) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its image was removed by somebody else: as soon as it is worth it another one is taken.
  void ImageIsGone(const FunctionPtr& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The template of this level was found dead: as soon as it is worth it another one is made.
  void TemplateIsGone(const FunctionPtr& function, StartLevel level) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The function's own template is there and can't be forked: it goes, and no other is made.
  void TemplateIsOfNoUse(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DependencyTemplateIsGone(const std::string& image) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What it has counts as standing until Forget.
  void NoteEnding(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its end is no surprise from here on.
  void EndInstance(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It has ended, and nothing of it is left.
  void Forget(const InstancePtr& instance, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts instances for calls that wait, or those of its successor, as far as that may be.
  void ServeWaiting(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the present revision of a function: calls wait for it now, or none do any more.
  void NoteWaiting(Function& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of how many are always to be there.
  void NoteProvisioned(const FunctionPtr& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // This revision is the present one no more.
  void ForgetWants(const Function& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops those at the head of the queue that nobody wants any more; `all`: wherever they are.
  void DropGone(Function& function, bool all, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts one for the first call that waits, if one is still wanted: there is room.
  void ServeFirst(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // There are fewer than are always to be there.
  bool LacksProvisioned(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillProvisioned(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // scheduler_shares.cc: how many instances the functions of an owner may have together, and have. Some are
  // left to others by everybody but root.
  uint64_t MostInstancesOf(uint32_t owner) const;
  uint32_t LivingOf(uint32_t owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OwnerMayHaveMore(uint32_t owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayHaveMore(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // More are loaded, and not being ended, than it may have since that was lowered.
  bool HasTooMany(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsLoaded(const Instance& instance);
  // And at least one is.
  bool AllAreStarting(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends as many of its idle ones; what is at work ends when it has answered (BecameFree).
  void EndSurplus(Function& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What instances have that are in no call's way to get, and can't go for others: those that are being
  // ended, as long as they are there, what is idle because it is always to be there, and what those at work
  // are likely to take beyond what they have between two calls.
  uint64_t StandingBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What all functions have in work, and these `standing_bytes`, leave one more of its instances the memory
  // that it is likely to take. What else is idle is in nobody's way: it goes.
  bool HasMemoryFor(const Function& function, uint64_t standing_bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What one more of its instances is likely to take, at work.
  static uint64_t LikelyBytes(const Function& function);
  // Its calls wait, and it has nothing to answer them.
  bool WaitsForItsFirst(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // So much has room for the first instances of the owner's functions that wait for them, for which it is
  // left.
  bool FirstOnesFit(uint32_t owner, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of those that wait, how many have none that comes.
  uint64_t CallsWithoutInstance(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls visit(function), once, for each that may want an instance: all others want none.
  template <typename Visit>
  void ForEachThatMayWant(Visit visit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How many instances it waits for: for calls, or else for what is always to be there.
  uint64_t Wants(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An instance of `giver` is in the way of one of `function`, because all, or their owner, have as many as
  // they may.
  bool MayHaveThatOf(const Function& giver, const Function& function) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who gets the next instance that may be started, or the place of one of `giver`; null: nobody waits for
  // one.
  FunctionPtr NextInTurn(const Function* giver, const std::set<const Function*>& without) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ServeInTurn(Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All functions together have as many instances as they may, or as there is memory for, and another
  // owner's, who has fewer than its own, waits for one: this one's next instance that has answered goes.
  bool OwesAnInstance(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As OwesAnInstance, for want of memory: to a function of the same owner that has none at all. `function`
  // has calls that wait.
  bool OwesItsOwnOwner(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends an idle instance, if none can be started for it before one has gone.
  void MakeRoomFor(const Function& asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Retire(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the revision that is replaced, or the one before it: which serves until the first instance of its
  // successor is ready; null: none does, and they are retired.
  FunctionPtr KeepForNow(const FunctionPtr& old, const ScheduledFunction& successor, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetirePredecessor(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayStart(const Function& function) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(std::vector<Action>& actions, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(const Action& action, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its first instance is there, or will not be: its image, if that waits for it, is taken or given up.
  void LetImage(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An image that waits for the first instance is wanted no more: neither is the try, if it was one.
  void ForgetWaitingImage(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its image is there, or will not be: its template, if one waits for that, is made or given up.
  void LetTemplate(const FunctionPtr& function, Later* later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On threads of the pools.
  void Make(const Thing& thing, const FunctionPtr& function, const std::string& dependency)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Unmake(const Thing& thing, const FunctionPtr& function, const std::string& dependency)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void PlanTick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);
  void LearnStart(const FunctionPtr& function, StartLevel level, double seconds, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One of its instances has so much in memory; `first`: it has answered for the first time.
  void LearnSize(const FunctionPtr& function, uint64_t bytes, bool first, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One of its instances had so much at most while it was at work; 0: it is not known.
  void LearnWork(const FunctionPtr& function, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LearnTemplateSize(const FunctionPtr& function, uint64_t bytes, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FunctionPtr Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  DependencyId DependencyOf(const ScheduledFunction& function, Later* later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SchedulerOptions options_;
  InstanceStarter& starter_;
  HttpThreads& threads_;
  const absl::Time epoch_;  // on the monotonic clock
  const int64_t started_unix_s_;
  const std::shared_ptr<boost::asio::io_context> context_;  // of the timers
  // Each owner has a part of them: a function may take as long as it likes with what it is asked to do.
  FairThreads starts_, makers_, clearers_;
  const std::shared_ptr<Shares> waiting_bytes_ = std::make_shared<Shares>();  // of each owner
  const std::shared_ptr<Shares> answer_bytes_ = std::make_shared<Shares>();

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  KeepAlivePolicy policy_ ABSL_GUARDED_BY(mutex_);
  boost::asio::steady_timer tick_ ABSL_GUARDED_BY(mutex_);
  Micros tick_at_ ABSL_GUARDED_BY(mutex_) = INT64_MAX;
  std::map<FunctionId, boost::asio::steady_timer> refills_ ABSL_GUARDED_BY(mutex_);
  std::map<FunctionId, boost::asio::steady_timer> image_retries_ ABSL_GUARDED_BY(mutex_);
  std::optional<FunctionId> image_retry_ ABSL_GUARDED_BY(mutex_);  // that is under way
  std::map<std::string, FunctionPtr> functions_ ABSL_GUARDED_BY(mutex_);
  // Of thousands few want something at a time, and at each start these alone are looked at: those for which
  // calls wait, by owner and name, and those of which some are always to be there.
  std::map<std::pair<uint32_t, std::string>, FunctionPtr> waiting_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, FunctionPtr> provisioned_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, ScheduledFunction> reserved_ ABSL_GUARDED_BY(mutex_);  // to be put in, perhaps
  uint64_t last_reservation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<Function>> by_id_ ABSL_GUARDED_BY(mutex_);
  std::vector<Dependency> dependencies_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Counters>> counters_ ABSL_GUARDED_BY(mutex_);
  // Functions whose instances take more at work than between two calls.
  std::set<FunctionId> grow_at_work_ ABSL_GUARDED_BY(mutex_);
  std::set<InstancePtr> instances_ ABSL_GUARDED_BY(mutex_);         // whose end has not been told yet
  std::set<InstancePtr> ending_ ABSL_GUARDED_BY(mutex_);            // those of them that are being ended
  std::map<uint32_t, uint32_t> living_of_ ABSL_GUARDED_BY(mutex_);  // how many of these each owner has
  std::array<StartTimes, kStartLevels> times_ ABSL_GUARDED_BY(mutex_);
  uint32_t started_ ABSL_GUARDED_BY(mutex_) = 0;  // instances, ever
  // Somebody was refused an instance for want of memory, and may wait for it.
  mutable bool memory_is_waited_for_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rekindle::functions
