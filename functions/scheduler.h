// Gives invocations to instances of functions, one at a time each: starts instances when there are too few,
// keeps and ends them as the keep-alive policy says (keep_alive_policy.h), and tells callers what a user of
// AWS Lambda would expect when something goes wrong.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "functions/http_threads.h"
#include "functions/instance_process.h"
#include "functions/invocation.h"
#include "functions/keep_alive_policy.h"
#include "functions/thread_counts.h"

namespace rekindle::functions {

struct SchedulerOptions {
  // Calls wait, too, while what is in work, is ending or is always to be there has all of its memory.
  KeepAliveOptions keep_alive;
  uint32_t most_instances = 1000;  // of all functions at once
  // Of one function's callers; beyond it they are refused. Events wait without limit: behind the callers.
  uint32_t longest_queue = 1000;
  uint64_t most_waiting_bytes = uint64_t{256} << 20;  // the same, of calls for one owner's
  uint64_t most_answer_bytes = uint64_t{512} << 20;   // of what one owner's instances send at a time
  ThreadCounts threads = ThreadCounts::OfThisMachine();
  // Before an image or template that could not be made is tried again, doubled each time.
  absl::Duration first_pause = absl::Seconds(5), longest_pause = absl::Minutes(5);
  // What an instance has in memory is looked at when it has answered, at most so often; and once it has stood
  // idle for so long after its first answer, since the rest of its image is filled in from there on.
  absl::Duration measure_every = absl::Seconds(1), filled_after = absl::Seconds(10);
  std::string arn_prefix = "arn:aws:lambda:us-east-1:000000000000:function:";
};

// One revision of a function, as far as scheduling goes.
struct ScheduledFunction {
  std::string name;
  uint64_t revision = 0;
  uint32_t owner = 0;  // uid; none can take all threads that start and make things
  uint64_t memory_bytes = 0;
  absl::Duration timeout;
  absl::Duration longest_start = absl::Seconds(60);  // until an instance asks for its first invocation
  uint32_t provisioned = 0;
  uint32_t most_instances = 0;    // 0: no limit of its own
  std::string dependency_image;   // reference; empty: it can only be started from nothing
  uint64_t dependency_bytes = 0;  // of a live copy of that, about
  bool has_image = false;         // its own image exists
  bool may_have_image = false;    // its runtime can be captured
  double cold_seconds = 1;        // a start from nothing, as far as known
  std::string only_cold;          // why it can only be started from nothing, if that is not as it should be
  std::string lacks;              // what it is not started from, and should be, and why
};

struct Call {
  std::string function;
  std::string request_id, payload, client_context, trace_id;
  bool dry_run = false;
  // Whether nobody wants the result any more: a call that waits for an instance is dropped then, one that has
  // begun goes on. Called with the scheduler's lock: quick, and calls nothing. Null: never.
  std::function<bool()> gone;
};

struct CallResult {
  std::string payload, content_type;
  std::string function_error;  // "Unhandled"; empty: it succeeded
  std::string log_tail;
  std::string instance;
  StartLevel level = StartLevel::kInstance;
  absl::Duration start, duration;  // until an instance was there (zero: one was idle); of the handler
};

struct StartNumbers {
  StartLevel level = StartLevel::kCold;
  uint64_t count = 0;
  double median_seconds = 0, p99_seconds = 0;
};

// How long starts of this level took since the scheduler began, of all functions together.
struct StartTimes {
  static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                     0.5,   1,    2.5,   5,    10,  30};  // seconds
  StartLevel level = StartLevel::kCold;
  std::array<uint64_t, kBounds.size()> within{};  // so many took no longer than each of these
  uint64_t count = 0;
  double seconds = 0;  // all of them together
};

// Counted since the function was put in, over all its revisions.
struct FunctionNumbers {
  uint64_t invocations = 0, errors = 0, timeouts = 0, throttles = 0;
  std::vector<StartNumbers> starts;  // of levels that occurred, the quickest first
  uint32_t busy = 0, idle = 0, starting = 0;
  uint64_t queued = 0, memory_bytes = 0;
  double duration_median_seconds = 0, duration_p99_seconds = 0;
  std::string problem;  // why its image or template could not be made, or it is not started as it should be
};

// Thread-safe.
class Scheduler {
 public:
  using Done = std::function<void(absl::StatusOr<CallResult>)>;

  class Core;  // scheduler_core.h
  // Given back when it goes; it may outlive the Scheduler. Thread-compatible.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&&) = default;
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation();

   private:
    friend class Core;
    std::weak_ptr<Core> core_;
    uint64_t number_ = 0;
  };

  // Both must outlive it.
  Scheduler(const SchedulerOptions& options, InstanceStarter& starter, HttpThreads& threads);
  ~Scheduler();  // Stop()
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Ends all instances. Callers that wait are told Unavailable. What the starter is asked until this returns
  // may still ask the scheduler, e.g. for Numbers. A second time: does nothing.
  void Stop();

  // Room for the instances of a function that are always to be there, with those of the other functions and
  // those that room is kept for: to be had before it is deployed, and kept until it is put in, or will not
  // be. ResourceExhausted: which limit is in the way. A revision that wants no more than the present one may
  // always take its place.
  absl::StatusOr<Reservation> ReserveProvisioned(const ScheduledFunction& function);
  // A new function, or a new revision of one: calls that come from now on get it, those under way end with
  // the instance that they have. Where instances of it are always to be there, idle ones of the revision
  // before it take calls until the first of these is ready, or could not be started.
  void Put(const ScheduledFunction& function);
  // Of the revision that is there, its time-out, provisioned and most_instances: its instances stay. Without
  // effect where it is not there any more.
  void Adjust(const ScheduledFunction& function);
  // Calls under way end; those that wait for an instance are told NotFound.
  void Remove(const std::string& name);
  // The template of a dependency image was taken down by somebody else.
  void LostTemplate(const std::string& dependency_image);

  // Never blocks. `done` is called once, perhaps within this. NotFound, ResourceExhausted (too many at
  // once), Unavailable (an instance could not be started), Cancelled (Call::gone). A function that fails is a
  // result.
  void Invoke(Call call, Done done);
  // An event, for which nobody waits: any call of the function's goes before it, and it is never refused
  // because there are too many. How many there are is for the caller to limit.
  void InvokeEvent(std::shared_ptr<const Call> event, Done done);

  // Of levels that occurred, the quickest first.
  std::vector<StartTimes> Times() const;
  // NotFound. Looks at the memory of each instance, which may take a while.
  absl::StatusOr<FunctionNumbers> Numbers(const std::string& name) const;

 private:
  std::shared_ptr<Core> core_;
};

// "running", "template", "dependency-template", "image-memory", "image-disk", "dependency-memory",
// "dependency-disk", "cold".
const char* NameOf(StartLevel level);

}  // namespace rekindle::functions
