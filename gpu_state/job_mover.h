// Moves the device memory of jobs out to host memory and back: for captures and restores, for park and
// resume. It finds the processes that use CUDA, refuses what can't work before anything moves, keeps the
// ledger, and verifies afterwards.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "gpu_state/await_room.h"
#include "gpu_state/device_plan.h"
#include "gpu_state/driver_client.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/gpu_session.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/ledger.h"
#include "gpu_state/move_reporter.h"

namespace rekindle::gpu {

struct MoverOptions {
  std::string ledger_directory;
  absl::Duration room_timeout = absl::Seconds(30);  // how long to wait for device memory that others have
  // A move of one job's memory that takes longer hangs. Not set: by its size, 2 minutes and one more second
  // for each 0.5 GB, but at least 10 minutes.
  std::optional<absl::Duration> move_timeout;
  // What a driver takes of host memory for each process on each GPU, beside what the management library tells
  // of it: 201 MiB with 580 on an H200.
  uint64_t context_bytes = uint64_t{256} << 20;
  // What limits a process. Empty: nobody looks.
  std::function<std::vector<HostLimit>(pid_t pid)> host_limits;
};

// What an image says of the GPUs of its job.
struct GpuRecord {
  int cuda_version = 0;            // 13000
  std::string driver;              // "580.95.05"; empty: not known
  std::vector<pid_t> pids;         // the processes that use CUDA; of others the uses are a guess, not noted
  std::vector<GpuDevice> devices;  // those they have memory on
  std::vector<GpuUse> uses;
  bool is_told = false;  // on which GPUs it was is what somebody says, who may be wrong
};

class JobMover;

// A job whose CUDA calls wait, and whose device memory is in host memory or is to go there. Goes back to the
// device when this goes, unless told otherwise. Thread-compatible.
class HeldJob {
 public:
  ~HeldJob();

  // Can CRIU be the keeper? Else the driver does not tell in which threads it works.
  bool can_be_kept() const { return can_be_kept_; }
  // After JobMover::Lock: moves the device memory out. Errors are those of TakeOut, and the job runs on. With
  // `keeper` all its threads stand still and CRIU traces them; without, a keeper of ours has them stand still
  // as long as memory moves.
  absl::Status MoveOut(ThreadKeeper* keeper, const MoveProgress& progress = nullptr);
  bool is_out() const { return held_ && is_out_; }
  bool was_parked() const { return was_parked_; }  // one of its processes, and is again
  // Without a keeper: CRIU is to trace the threads.
  void LetThreadsGo() { session_.LetGo(); }
  // Before whoever has it stopped lets it go on: its threads stand still until its memory is back.
  void HoldThreads() { session_.HoldForRestore(); }
  bool is_held() const { return held_; }  // it has not gone back yet

  // Since its CUDA calls were told to wait.
  const Stopwatch& stands_still() const { return stands_still_; }
  const GpuRecord& record() const { return record_; }
  uint64_t device_bytes() const;  // of the whole job

  // Those that were running before run again, on the same GPUs; their states are verified. On failure the
  // job is parked, which `rekindle gpu ps` shows, and its data is safe. It is held still where `keeper` could
  // not run the driver's threads.
  absl::Status Back(const MoveProgress& progress = nullptr, ThreadKeeper* keeper = nullptr);
  // It stays in host memory, listed as parked.
  absl::Status Park(const std::string& why);
  // The processes have ended.
  void JobEnded();

 private:
  friend class JobMover;
  HeldJob(JobMover& mover, GpuSession session, pid_t job)
      : mover_(mover), session_(std::move(session)), job_(job) {}

  JobMover& mover_;
  GpuSession session_;
  const pid_t job_;
  GpuRecord record_;
  Stopwatch stands_still_;
  bool held_ = false, is_out_ = false, can_be_kept_ = false, was_parked_ = false;
  std::shared_ptr<void> claim_;                      // nobody else moves these processes while this is
  std::optional<HostMemory::Reservation> reserved_;  // until the move out has ended
  absl::StatusOr<DeviceView> view_;                  // before that
  std::vector<GpuUse> moving_;
};

// Thread-safe. The processes of one job are moved by one call at a time: another gets Aborted.
class JobMover {
 public:
  explicit JobMover(MoverOptions options);
  ~JobMover();

  absl::StatusOr<DriverInfo> Info() { return driver_.Info(); }
  uint64_t context_bytes() const { return options_.context_bytes; }
  // With the uses of processes that this PID namespace has.
  absl::StatusOr<DeviceView> Devices();
  // The same as seen by who wants room: what is off its GPU for a moment only, as while an image is taken, is
  // still there, and not free.
  absl::StatusOr<DeviceView> DevicesWithKeptRoom();

  // Those of `pids` that use CUDA. The driver is asked only when one has its library mapped.
  absl::StatusOr<std::vector<pid_t>> Users(absl::Span<const pid_t> pids);
  // Processes that use CUDA and of which `view` says nothing: those that have nothing on a GPU just now, and
  // where it may be that the management library does not know them, as in a container, where it names
  // processes by their PIDs outside, those that run as well.
  std::vector<pid_t> UsersMissingIn(const DeviceView& view);
  // How much device memory they have, as far as the driver tells.
  absl::StatusOr<std::vector<GpuUse>> UsesOf(absl::Span<const pid_t> pids);

  // How much host memory their device memory may take, to have room for it; where the driver does not tell
  // what they have, no more than is used at all, or 0.
  uint64_t EstimateBytes(absl::Span<const pid_t> pids);

  // Is device memory of one of these off its GPU, or on the way? Cheap: no driver is asked.
  bool AreOut(absl::Span<const pid_t> pids);
  // Those of `pids` that somebody, here or in another Rekindle, moves just now or holds for an image. Cheap
  // as well. Whoever only wants to look leaves them alone: a question that meets a frozen process is part of
  // its image.
  std::vector<pid_t> BeingMoved(absl::Span<const pid_t> pids);

  // Moves the device memory of the job with root `job` and CUDA processes `pids` out. ResourceExhausted:
  // there is not as much free host memory; nothing has moved. DataLoss: the driver reported success, but did
  // not move what the job had; the job runs on.
  absl::StatusOr<std::unique_ptr<HeldJob>> TakeOut(pid_t job, const std::vector<pid_t>& pids,
                                                   absl::Duration lock_timeout,
                                                   const MoveProgress& progress = nullptr);
  // The first half of that: the CUDA calls of the job wait.
  absl::StatusOr<std::unique_ptr<HeldJob>> Lock(pid_t job, const std::vector<pid_t>& pids,
                                                absl::Duration lock_timeout);
  // Parked or just restored processes back to the device. `keeper`: as HeldJob::MoveOut's. `cancelled`: is
  // asked for as long as nothing moves yet, which it ends (Cancelled).
  absl::Status PutOn(pid_t job, const std::vector<pid_t>& pids, const GpuRecord& record,
                     const DevicePairs& pairs, const MoveProgress& progress = nullptr,
                     ThreadKeeper* keeper = nullptr, const std::function<bool()>& cancelled = nullptr);

  // After CRIU has had them: the parked ones of these are watched again (GpuSession::Watch), as the ledger
  // knows them, without a question to the driver: they may be stopped, or hang in it. Then those that another
  // tool has taken out, which only the driver knows.
  void WatchNoted(absl::Span<const pid_t> pids);
  void WatchParked(const std::vector<pid_t>& pids);
  // Parked ones whose watch has ended (killed): they have another one.
  void WatchAgain();
  // Why a parked process that runs may die without its memory: empty, it is watched.
  static std::string WatchTrouble(const LedgerEntry& entry);

  // Before what an interrupted capture has left stopped goes on: those of these processes that the ledger has
  // are watched until Recover() has their memory back, and go on.
  void WatchOut(absl::Span<const pid_t> pids);

  // Before a restore starts anything: can the state go onto this machine's GPUs, and onto which?
  absl::StatusOr<DevicePairs> PlanRestore(const GpuRecord& record, const DevicePairs& wanted,
                                          bool ignore_mismatch);

  // Entries of living processes.
  absl::StatusOr<std::vector<LedgerEntry>> Parked();
  // Parked processes whose entries another runtime folder has, or ours has lost: what their watches know.
  std::vector<LedgerEntry> ParkedElsewhere();
  // Why what this entry's process has in host memory can't go back with the driver that is here now; empty:
  // nothing speaks against it.
  std::string DriverTrouble(const LedgerEntry& entry);
  // FailedPrecondition: that is so of one of these that is off its GPU, and the text names both drivers.
  absl::Status CheckDriver(absl::Span<const pid_t> pids);
  // That is so of these from now on: they have their entries again.
  void RecallParked(absl::Span<const pid_t> pids);
  // Does somebody, here or in another Rekindle, hold or move one of them just now? Aborted: names it.
  absl::Status CheckNotMoving(absl::Span<const pid_t> pids);
  // Of these, those that run are listed as parked no more: another tool has brought them back.
  void ForgetRunning(absl::Span<const pid_t> pids);
  // FailedPrecondition for one that is stopped or frozen, of which the driver would not answer.
  std::vector<absl::StatusOr<ProcessState>> States(
      absl::Span<const pid_t> pids, DriverClient::Purpose purpose = DriverClient::Purpose::kToAct);

  // What dead Rekindles have left in the middle of a move goes back to the device. What can't is listed as
  // parked. Returns the PIDs that run again. `except`: those that can't yet, since a capture has them.
  absl::StatusOr<std::vector<pid_t>> Recover(absl::Span<const pid_t> except = {});

 private:
  friend class HeldJob;

  // Aborted: another Rekindle on this machine moves one of them.
  absl::Status CheckNobodyElseMoves(absl::Span<const pid_t> pids);
  absl::Duration MoveMayTake(absl::Span<const GpuUse> uses) const;
  SessionOptions OptionsWith(absl::Duration lock_timeout, absl::Span<const GpuUse> uses = {});
  // The parked ones that nobody watches.
  std::vector<LedgerEntry> Unwatched(absl::Span<const pid_t> pids);
  // These are watched then. Aborted: somebody else has one.
  absl::Status WatchClaimed(absl::Span<const pid_t> pids);
  void WatchEntries(absl::Span<const LedgerEntry> entries);
  // For the watch of processes that stay parked.
  std::string NoteFor(absl::Span<const pid_t> pids);
  // Where their device memory is mapped, or was when the ledger's entries were made.
  DeviceAreas AreasOf(absl::Span<const pid_t> pids);
  absl::Status PutEntries(pid_t job, absl::Span<const pid_t> pids, absl::Span<const GpuUse> uses,
                          LedgerEntry::Goal goal, const std::string& why, bool keeps_room = false);
  // The GPUs that the uses of `record` are on. Unimplemented: one is in MIG mode.
  static absl::Status RecordDevices(const DeviceView& view, GpuRecord* record);
  // After a move out of `running`, of which `moved` was known: what the GPUs tell of the others, into `moved`
  // and the job's record.
  void NoteWhatWasHidden(const DeviceView& before, absl::Span<const pid_t> running,
                         std::vector<GpuUse>* moved, HeldJob* job);
  // After a move: those of `pids` that run are in the ledger no more, the others are listed as parked.
  void Settle(pid_t job, const GpuSession& session, absl::Span<const pid_t> pids,
              absl::Span<const GpuUse> uses, const std::string& why);
  // See gpu::AwaitRoom. `comes_back`: its room was kept for it; of those of whom this is so the first one has
  // it.
  absl::StatusOr<RoomTurns> AwaitRoom(const RoomByDevice& needed, absl::Span<const pid_t> pids,
                                      bool comes_back, const std::function<bool()>& cancelled = nullptr);
  // PutOn by who has the claim of `pids` already.
  absl::Status PutOnClaimed(pid_t job, const std::vector<pid_t>& pids, const GpuRecord& record,
                            const DevicePairs& pairs, const MoveProgress& progress = nullptr,
                            ThreadKeeper* keeper = nullptr, const std::function<bool()>& cancelled = nullptr);
  // Of what is in the ledger of these on which GPUs they were nothing is known.
  void NoteUnplaced(absl::Span<const pid_t> pids);
  absl::Status RecoverJob(pid_t job, const std::vector<LedgerEntry>& entries, std::vector<pid_t>* freed);

  const MoverOptions options_;
  Ledger ledger_;
  HostMemory host_memory_;
  DriverClient driver_;
};

}  // namespace rekindle::gpu
