// Which of many model servers have their device memory on the GPUs, and which are parked in host memory: a
// lease brings a job onto its GPU and keeps it there; where memory is short, those used least recently make
// room. Only the policy: the moves themselves lie behind GpuMoves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rekindle::daemon {

// By UUID, "GPU-…".
using DeviceBytes = std::map<std::string, uint64_t>;

// What is free on every GPU of this machine.
struct FreeDeviceMemory {
  DeviceBytes bytes;
  // GPUs of which that is not told. OK: the move itself finds out whether there is room. Error: nothing can
  // be moved onto it, and why.
  std::map<std::string, absl::Status> unknown;
};

// The root process of a job: with its start time the PID names it for ever.
struct GpuJobId {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  friend bool operator==(const GpuJobId&, const GpuJobId&) = default;
};

// What the arbiter asks for, always on the thread of the call that needs it and without holding a lock: these
// may block, and may call GpuArbiter::Add, SetBytes and Forget. Thread-safe.
class GpuMoves {
 public:
  virtual ~GpuMoves() = default;

  // On failure the job is still on its GPUs.
  virtual absl::Status Park(const GpuJobId& job) = 0;
  // On failure the job is still parked. ResourceExhausted: others have taken its room meanwhile; Aborted or
  // Unavailable: not now. After these it is tried again, any other error ends the lease that asked for it.
  virtual absl::Status Resume(const GpuJobId& job) = 0;
  virtual absl::StatusOr<FreeDeviceMemory> FreeMemory() = 0;
  // What these jobs have on their GPUs now, by PID; without those of which that is not known.
  virtual std::map<pid_t, DeviceBytes> BytesOf(const std::vector<GpuJobId>& jobs) = 0;
  virtual bool IsAlive(const GpuJobId& job) = 0;
  // Whose descendants these are now: the processes above each, by its PID.
  virtual std::map<pid_t, std::vector<pid_t>> AncestorsOf(const std::vector<GpuJobId>& jobs) = 0;
};

enum class GpuJobState {
  kResident,  // on its GPUs
  kParked,    // in host memory
  kParking,   // chosen to make room, or on its way out
  kResuming,
};

struct GpuArbiterOptions {
  // The device memory of all parked jobs, and of those on their way in or out, together.
  uint64_t host_budget = UINT64_MAX;
  // That each takes beside that of each GPU that it is on.
  uint64_t context_bytes = 0;
  // Sizes of the GPUs, as far as they are known.
  DeviceBytes device_totals;
  // Who waits for room looks anew after every event here; and this often, because processes that the arbiter
  // does not know take and give device memory too, and because jobs die unseen.
  absl::Duration reread_interval = absl::Seconds(1);
  // How often LeaseOptions::cancelled of a request that waits is asked.
  absl::Duration cancel_interval = absl::Milliseconds(100);
};

// What ends a lease, besides the end of its job.
enum class LeaseKind {
  kLasting,  // its release alone, by whomever: it is to outlive a restart too, see GpuArbiter::Inherit
  kHeld,     // the end of the call that took it, and so that of this process too
};

struct LeaseOptions {
  LeaseKind kind = LeaseKind::kLasting;
  // How long to wait: the earlier of the two. A move that has begun is ended first. With no time at all the
  // lease is had if it can be had at once.
  absl::Duration timeout = absl::InfiniteDuration();
  absl::Time deadline = absl::InfiniteFuture();
  // The job stays on its GPU after the lease too.
  bool pin = false;
  // Names a lease of LeaseKind::kLasting, which then ends by this alone. Where the job has one of this name
  // already, that is it: who asks again takes no second one. To be followed by GpuArbiter::Confirm or
  // TakeBack. Empty: it has none.
  std::string id = "";
  // Is the lease wanted no more? Asked by the calling thread alone, without a lock: now and then while it
  // waits, after GpuArbiter::Wake, and after each move. May be empty.
  std::function<bool()> cancelled;
};

struct GpuLease {
  GpuJobId job;               // for Release
  bool resumed = false;       // it was parked
  std::vector<pid_t> parked;  // these made room
  double seconds = 0;         // that it took
};

struct GpuJobSnapshot {
  GpuJobId id;
  GpuJobState state = GpuJobState::kResident;
  DeviceBytes bytes;
  int leases = 0;             // of both kinds
  int held = 0;               // of these the ones of LeaseKind::kHeld
  std::set<std::string> ids;  // of those that have one
  bool pinned = false;
  uint64_t use = 0;  // the larger the later it was used, whatever the clock says
  int waiters = 0;   // requests that wait for it
  int position = 0;  // of the first of them among those that share a GPU with it, from 1; 0: none waits
};

struct GpuArbiterCounters {
  uint64_t leases = 0;  // granted
  uint64_t waits = 0;   // requests that could not be served at once
  uint64_t resumes = 0;
  uint64_t evictions = 0;  // jobs parked to make room
  uint64_t timeouts = 0;
  uint64_t cancelled = 0;
  uint64_t refused = 0;   // requests that ended with any other error
  uint64_t failures = 0;  // moves that failed
  uint64_t deaths = 0;    // jobs found dead
};

// Thread-safe. Requests are served in the order they came in: one waits while an earlier one that shares a
// GPU with it waits, also when its own job is on the GPU (or a busy server would never be parked), and never
// for one that shares none. So at most one request moves jobs onto a GPU at a time. A request that ends,
// however it does, is in nobody's way any more. A job that is part of another one's process tree moves with
// it: where one of them is leased or pinned, neither is parked. It keeps no files: whoever has it remembers
// leases and pins over a restart, and gives them back with Inherit.
class GpuArbiter {
 public:
  GpuArbiter(GpuMoves* moves, GpuArbiterOptions options);  // `moves` outlives it
  ~GpuArbiter();                                           // no call may be under way

  // Makes a job known as kResident or kParked, with what it has, or needs, on each GPU; or corrects what is
  // known of it (its state only when it isn't being moved). Another process with this PID is forgotten.
  // `anywhere`: of a parked job it is not known what of it was where: each GPU may need so much, and host
  // memory holds it but once.
  void Add(const GpuJobId& job, DeviceBytes bytes, GpuJobState state, bool anywhere = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives a job, which is added as kResident if it isn't known, leases of LeaseKind::kLasting and a pin from
  // before a restart, on top of what it has: `leases` without an ID, and one with each of `ids`, unless it
  // has that already. Not checked against anything: they were granted.
  void Inherit(const GpuJobId& job, int leases, bool pinned, const std::set<std::string>& ids = {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A job's memory has grown or shrunk. Unknown jobs are left alone. ResourceExhausted: it is on its way into
  // host memory, which its growth does not fit in.
  absl::Status SetBytes(const GpuJobId& job, DeviceBytes bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // It has ended, or is nobody's business any more. Its leases end, who waits for it gets NotFound.
  void Forget(const GpuJobId& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetDeviceTotals(DeviceBytes totals) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns when the job is on its GPUs and keeps it there until Release. A job may be leased several times.
  // NotFound: no such job, or it has ended. DeadlineExceeded: says who has the memory. ResourceExhausted: it
  // can't ever fit, or pins or the host budget stand against it and nothing is under way that may change
  // that. FailedPrecondition: one of its GPUs isn't there. Cancelled. Unavailable: after Stop. Or what Resume
  // said.
  absl::StatusOr<GpuLease> Lease(pid_t job, const LeaseOptions& options) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the lease with this ID, or without one a lease of this kind that has none. With `start_ticks` only
  // of this very process. NotFound: unknown (its leases have ended); FailedPrecondition: it has no such
  // lease, or no more.
  absl::Status Release(pid_t job, uint64_t start_ticks = 0, LeaseKind kind = LeaseKind::kLasting,
                       const std::string& id = "") ABSL_LOCKS_EXCLUDED(mutex_);
  // Whoever asked for the lease with this ID knows of it. Does nothing where it has ended meanwhile.
  void Confirm(const GpuJobId& job, const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody will know of a lease that was given: it ends. One with an ID stays where somebody else who asked
  // for it knows of it, or may still come to. Errors as of Release.
  absl::Status TakeBack(const GpuJobId& job, LeaseKind kind, const std::string& id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Does a request wait for one of its GPUs?
  bool IsWanted(pid_t job) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A pinned job isn't parked to make room. Moves nothing.
  absl::Status Pin(pid_t job, bool pinned) ABSL_LOCKS_EXCLUDED(mutex_);
  // Parks it now, within the host budget. FailedPrecondition: it, or one of its process tree, is leased or
  // pinned; Aborted: being moved.
  absl::Status Park(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<GpuJobSnapshot> Snapshot() const ABSL_LOCKS_EXCLUDED(mutex_);  // by PID
  GpuArbiterCounters counters() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t host_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);  // of the host budget in use

  // Lets every waiting request ask its `cancelled` now.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all waiting, and refuses new leases.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Guarded by mutex_, as is Request. Whoever moves a job keeps it alive after it was forgotten.
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  struct Request;
  enum class Candidates { kNow, kIfReleased };

  JobPtr Find(pid_t pid, uint64_t start_ticks) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobPtr FindOrMake(const GpuJobId& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status End(const JobPtr& job, pid_t pid, LeaseKind kind, const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It is leased under this request's ID, on its GPUs, and stays there.
  bool HasItAlready(const Job& job, const LeaseOptions& options) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ChangeBytes(Job& job, DeviceBytes bytes, bool anywhere) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of host memory while it is parked.
  uint64_t HostBytes(const Job& job) const;
  void Charge(Job& job, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is parked as part of a process tree that is charged for counts with that. `no_more`: with this one
  // its parts counted so far.
  void ChargePartsOnce(const Job* no_more = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Use(Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Says anew whose turn it is on each GPU.
  void Reorder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those that wait for what this job has, for the job itself, or for host memory look anew.
  void Nudge(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NudgeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyoneWaitsFor(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The parts of Lease. Those that take a Request let go of mutex_ for a while.
  absl::Status Serve(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Advance(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the job needs beyond what is free.
  absl::StatusOr<DeviceBytes> ShortageOf(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Jobs on the GPUs have grown and shrunk unseen. Lets go of mutex_ for a while.
  void LookAtResidents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ResumeJob(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ParkVictims(Request& request, const std::vector<JobPtr>& victims)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ParkOne(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitChange(Request& request, absl::Duration at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskCancelled(Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveIfDead(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveDead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Which jobs are part of which others' trees: of all, or of those of which it was never asked; a process
  // gets no new ancestors. Lets go of mutex_ for a while.
  enum class Trees { kAll, kNew };
  void LookAtTrees(Trees which) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The first job of the same process tree of which that is so; none: nullptr.
  JobPtr KinThat(const Job& job, bool (*is)(const Job&)) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // With a job its kin has moved: what is under it, and where it left, what it is part of.
  void MoveKin(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Must it end, and why?
  absl::Status CheckWanted(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Who is to be parked so that `shortage` is met; nobody when that is not to be had within `host_room`.
  std::vector<JobPtr> ChooseVictims(const Request& request, const DeviceBytes& shortage, uint64_t host_room,
                                    Candidates candidates) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckFits(const Job& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Can waiting help? Notes in the request whether it is host memory that is short.
  absl::Status CheckHope(Request& request, const DeviceBytes& shortage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  uint64_t HostRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeDevices(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeHost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeQueue(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  GpuMoves& moves_;
  const GpuArbiterOptions options_;
  mutable absl::Mutex mutex_;
  DeviceBytes totals_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, JobPtr> jobs_ ABSL_GUARDED_BY(mutex_);
  std::list<Request*> queue_ ABSL_GUARDED_BY(mutex_);  // in the order they came in
  uint64_t host_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;  // orders jobs by their last use
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  GpuArbiterCounters counters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::daemon
