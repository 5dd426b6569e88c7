// Jobs on this node's GPUs: finds their processes, parks and resumes them, lets the arbiter do so for leases,
// and remembers these over a restart.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "daemon/gpu_arbiter.h"
#include "daemon/gpu_lease_record.h"
#include "gpu_state/job_mover.h"

namespace rekindle::daemon {

struct GpuMoved {
  uint64_t bytes = 0;  // as far as they are known
  bool moved = false;  // else it was so already
};

// A lease that was given.
struct GpuGrant {
  GpuJobId job;
  LeaseKind kind = LeaseKind::kLasting;
  std::string id;      // as LeaseOptions'
  uint64_t bytes = 0;  // that the job has on its GPUs, or had a second ago
  uint64_t pin = 0;    // its pin's number until Confirm; 0: it asked for none, or the job is pinned anyway
};

// Thread-safe. A job is named by the PID of its root process. FailedPrecondition: it uses no CUDA.
class GpuJobs : private GpuMoves {
 public:
  // `mover` outlives this. `host_budget`: how much device memory of parked jobs host memory may hold.
  // `lease_record`: the file that remembers leases and pins, see gpu_lease_record.h.
  GpuJobs(gpu::JobMover* mover, uint64_t host_budget, std::string lease_record);

  // Takes over the jobs that live, with their leases and pins, as the record says, and those that are parked.
  // Once, before anything else is asked of this, and after gpu::JobMover::Recover. Logs what goes wrong.
  // While another daemon has the record, that one's leases are none of ours, and the first lease after its
  // end takes them over.
  void InheritLeases() ABSL_LOCKS_EXCLUDED(mutex_, record_mutex_);

  // Not while it is leased or pinned, be it by another daemon with this record.
  absl::StatusOr<GpuMoved> Park(pid_t job, absl::Duration lock_timeout, const std::string& why)
      ABSL_LOCKS_EXCLUDED(mutex_, record_mutex_);
  // Parks nobody for it. `wanted`: onto which GPUs; empty: the same. `cancelled`: is asked for as long as
  // nothing moves yet, which it ends (Cancelled); null: never.
  absl::StatusOr<GpuMoved> Resume(pid_t job, const gpu::DevicePairs& wanted,
                                  const std::function<bool()>& cancelled = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_, record_mutex_);

  // FailedPrecondition: it was parked with another driver, with which alone it can be resumed.
  absl::Status CheckDriver(pid_t job);
  // Could a parked job have its device memory at once, without anybody making room? False where that is not
  // known.
  bool FitsNow(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);

  // See GpuArbiter::Lease. While somebody else moves its memory, for an image say, that is waited for. A
  // lease or pin that the record can't remember isn't given: the error, such as ResourceExhausted for a full
  // file system, names the file. Unavailable: another daemon has the record. To be followed by Confirm or
  // TakeBack.
  absl::StatusOr<GpuGrant> Lease(pid_t job, const LeaseOptions& options) ABSL_LOCKS_EXCLUDED(record_mutex_);
  // Whoever asked for it knows of it: the lease and its pin stay.
  void Confirm(const GpuGrant& grant) ABSL_LOCKS_EXCLUDED(record_mutex_);
  // Nobody knows of it, and nobody would give it back: it ends, unless somebody else who asked for one with
  // its ID has it too, and its pin unless somebody else has pinned the job too.
  void TakeBack(const GpuGrant& grant) ABSL_LOCKS_EXCLUDED(record_mutex_);
  // Ends a lease, that with this `id` or one without, whether the record can be told or not. Gives the number
  // of leases that are left. Unavailable: another daemon has the record.
  absl::StatusOr<int> Release(pid_t job, LeaseKind kind, const std::string& id = "")
      ABSL_LOCKS_EXCLUDED(record_mutex_);
  // Likewise a pin, if there is one. NotFound: it was never leased, or has ended.
  absl::StatusOr<int> Unpin(pid_t job) ABSL_LOCKS_EXCLUDED(record_mutex_);

  // Does somebody who wants a lease wait for one of its GPUs?
  bool IsWanted(pid_t job) const { return arbiter_.IsWanted(job); }

  // Those that the arbiter knows.
  std::map<pid_t, GpuJobSnapshot> Known() const;
  // Since this was made.
  GpuArbiterCounters counters() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Host memory of parked jobs that counts, and how much there may be; UINT64_MAX: any.
  uint64_t host_bytes() const { return arbiter_.host_bytes(); }
  uint64_t host_budget() const { return host_budget_; }
  // Ends all waiting.
  void Stop() { arbiter_.Stop(); }

 private:
  struct Found {
    GpuJobId id;
    std::vector<pid_t> pids;    // that use CUDA
    std::vector<pid_t> parked;  // those of them that are not running
    std::vector<gpu::GpuUse> uses;
    std::vector<pid_t> unknown;  // of those that are parked: nobody knows on which GPU they were
  };
  struct ParkOptions {
    absl::Duration lock_timeout = absl::Seconds(10);
    std::string why = "parked to make room for another job";
  };

  // What the record says, as InheritLeases.
  void Inherit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  void InheritParked() ABSL_LOCKS_EXCLUDED(mutex_);
  // The record is ours, and what it says is taken over. Unavailable: another daemon has it.
  absl::Status OwnRecord() ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  // The same, but waits a while for one that is ending. Gives what is left of the lease's time.
  absl::StatusOr<absl::Duration> OwnRecordInTime(const LeaseOptions& options)
      ABSL_LOCKS_EXCLUDED(record_mutex_);
  // FailedPrecondition: another daemon has leased or pinned it, or one of its process tree.
  absl::Status CheckNotLeasedElsewhere(pid_t job) ABSL_LOCKS_EXCLUDED(record_mutex_);
  absl::StatusOr<Found> Find(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Aborted: somebody moves it just now, or holds it for an image, and what is found says nothing.
  absl::Status CheckAtRest(const std::vector<pid_t>& pids);
  absl::StatusOr<Found> FindAtRest(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the arbiter know the job as it is. Aborted: as CheckAtRest.
  absl::Status Learn(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but waits as long as a lease may. Gives what is left of its time.
  absl::StatusOr<absl::Duration> LearnInTime(pid_t job, const LeaseOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // To an error of a lease for want of room: that it is needed on each GPU, where that is so.
  absl::Status WithHintAtUnknown(pid_t job, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Is what the arbiter knows of the job still so? Cheap: asks for states alone.
  bool IsAsKnown(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the arbiter know how much a job on its GPUs has by now.
  void MeasureNowAndThen(const GpuJobId& job) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of those of its processes that used CUDA when it was found.
  std::vector<pid_t> KnownUsers(pid_t job) ABSL_LOCKS_EXCLUDED(mutex_);
  int LeasesOf(pid_t job) const;
  // What is known of a job from earlier, of GPUs that do not tell who uses them.
  void AddUntold(const gpu::DeviceView& view, const GpuJobId& job, DeviceBytes* bytes) const;
  // What a parked job of which nobody knows where it was may need on each GPU; no more than makes that as
  // good as empty.
  DeviceBytes RoomForUnknown(const Found& found, const gpu::DeviceView& view) const;
  // Tells the arbiter what was found; a job that is parked in part is parked.
  void Tell(const Found& found) ABSL_LOCKS_EXCLUDED(mutex_);
  // One that came back on other GPUs: what is known of it is of these.
  void Follow(pid_t job, const gpu::DevicePairs& pairs);
  void Tell(const Found& found, GpuJobState state) ABSL_LOCKS_EXCLUDED(mutex_);
  // Resume without telling the arbiter.
  absl::StatusOr<GpuMoved> PutOn(pid_t job, const gpu::DevicePairs& wanted,
                                 const std::function<bool()>& cancelled = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Pins the job, if that is asked for, and has the record remember its lease. On failure the lease has ended
  // and the pin is as it was.
  absl::Status Remember(const LeaseOptions& options, GpuGrant* grant) ABSL_LOCKS_EXCLUDED(record_mutex_);
  void Pin(GpuGrant* grant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  // If nobody else has pinned the job.
  void UndoPin(const GpuGrant& grant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  absl::Status WriteRecord() ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  // After a change that holds in any case. `lost`: what a restart would do without it.
  void WriteRecordOrWarn(const char* lost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_mutex_);
  // Which jobs are known, and when each was used last: the next daemon parks them to make room. Only where
  // leases were inherited: a command that parks a job has no record, and would overwrite the daemon's.
  void RememberUse() ABSL_LOCKS_EXCLUDED(record_mutex_);

  // GpuMoves, for the arbiter.
  absl::Status Park(const GpuJobId& job) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Resume(const GpuJobId& job) override;
  absl::StatusOr<FreeDeviceMemory> FreeMemory() override;
  std::map<pid_t, DeviceBytes> BytesOf(const std::vector<GpuJobId>& jobs) override;
  bool IsAlive(const GpuJobId& job) override;
  std::map<pid_t, std::vector<pid_t>> AncestorsOf(const std::vector<GpuJobId>& jobs) override;

  gpu::JobMover& mover_;
  const uint64_t host_budget_;
  GpuArbiter arbiter_;
  mutable absl::Mutex mutex_;
  std::map<pid_t, std::vector<pid_t>> users_ ABSL_GUARDED_BY(mutex_);  // of jobs found: what uses CUDA
  std::set<pid_t> unknown_ ABSL_GUARDED_BY(mutex_);  // of jobs found: nobody knows where they were
  std::map<pid_t, SteadyClock::time_point> measured_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, ParkOptions> asked_ ABSL_GUARDED_BY(mutex_);  // what a call that parks this job wants
  GpuArbiterCounters before_queue_
      ABSL_GUARDED_BY(mutex_);  // requests that did not get as far as the arbiter
  // Held from a look at the arbiter until what was seen is written, so that the latest is written last; and
  // whenever a pin changes. Before mutex_.
  absl::Mutex record_mutex_;
  GpuLeaseRecord record_ ABSL_GUARDED_BY(record_mutex_);
  bool inherited_ ABSL_GUARDED_BY(record_mutex_) = false;
  // What the record says of jobs in other PID namespaces, as in another container: it goes on saying so.
  std::vector<GpuJobLeases> of_other_namespaces_ ABSL_GUARDED_BY(record_mutex_);
  // Of jobs that are pinned by grants which nobody has confirmed alone: these grants' pins.
  std::map<pid_t, std::set<uint64_t>> unconfirmed_pins_ ABSL_GUARDED_BY(record_mutex_);
  uint64_t pins_ ABSL_GUARDED_BY(record_mutex_) = 0;
};

}  // namespace rekindle::daemon
