#include "gpu_state/job_mover.h"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cgroup_folders.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "gpu_state/cuda_processes.h"
#include "gpu_state/hidden_uses.h"
#include "gpu_state/pid_namespace.h"
#include "gpu_state/process_claim.h"

namespace rekindle::gpu {
namespace {

// A question that somebody else's move keeps waiting for longer is asked in vain, and harms nobody.
constexpr absl::Duration kStateMayTake = absl::Seconds(60), kShownStateMayTake = absl::Seconds(5);
// After a move without an answer.
constexpr absl::Duration kShortestRecovery = absl::Seconds(5), kLongestRecovery = absl::Seconds(30);
// How long the helper of a dead Rekindle may go on putting things back before we do it.
constexpr absl::Duration kOthersMayTake = absl::Seconds(60);
constexpr absl::Duration kGoingOnMayTake = absl::Seconds(2);
constexpr absl::Duration kLookForOthersEvery = absl::Milliseconds(50);

// One that stood goes on: what was stopped for a while, or what is watched, which its watch has to let go on.
absl::Status AwaitAnswers(absl::Span<const pid_t> pids) {
  for (const Deadline deadline(kGoingOnMayTake);; absl::SleepFor(kLookForOthersEvery)) {
    absl::Status first;
    for (pid_t pid : pids) first.Update(CheckAnswers(pid));
    if (first.ok() || deadline.passed()) return first;
  }
}

HiddenUses HiddenIn(const DeviceView& view, absl::Span<const GpuUse> uses, absl::Span<const pid_t> pids) {
  return FindHidden(view.devices, uses, pids, InFirstPidNamespace());
}

// As whoever moved them had listed them, which says in which order they come back (RoundsOf).
void SortAsMoved(pid_t job, std::vector<LedgerEntry>* entries) {
  const std::vector<pid_t> tree = ProcessTree(job);
  const auto place = [&tree](const LedgerEntry& entry) {
    return absl::c_find(tree, entry.pid) - tree.begin();
  };
  absl::c_stable_sort(*entries,
                      [&place](const LedgerEntry& a, const LedgerEntry& b) { return place(a) < place(b); });
}

// What the driver said, and that a GPU which does not answer may be the reason.
absl::Status WithHint(const absl::Status& status, const absl::StatusOr<DeviceView>& view) {
  const std::string hint = status.ok() || !view.ok() ? "" : HintAtLost(*view);
  return hint.empty() ? status : WithMessage(status, absl::StrCat(status.message(), "; ", hint));
}

}  // namespace

JobMover::JobMover(MoverOptions options)
    : options_(std::move(options)),
      ledger_(options_.ledger_directory),
      host_memory_(options_.host_limits, options_.context_bytes),
      driver_({"",
               [this]() -> absl::StatusOr<int> {
                 RK_ASSIGN_OR_RETURN(Ledger::Mover mover, ledger_.Enlist());
                 return mover.descriptor;
               },
               options_.ledger_directory, options_.room_timeout}) {}

JobMover::~JobMover() = default;

absl::StatusOr<std::vector<pid_t>> JobMover::Users(absl::Span<const pid_t> pids) {
  std::vector<pid_t> candidates;
  for (pid_t pid : pids) {
    if (MapsCuda(pid)) candidates.push_back(pid);
  }
  if (candidates.empty()) return candidates;
  // It stands still, and is only seen to be stopped.
  const std::vector<pid_t> moved = BeingMoved(candidates);
  if (!moved.empty() && !CheckAnswers(moved[0]).ok()) return IsBeingMovedError(moved[0]);
  auto info = driver_.Info();
  // Many programs load the library to look for a GPU. Where there is none, nothing can be on it.
  if (absl::IsNotFound(info.status())) return std::vector<pid_t>();
  if (!info.ok()) {
    return Annotate(info.status(), absl::StrCat("process ", candidates[0], " has loaded ", kCudaLibrary));
  }
  for (pid_t pid : candidates) {
    RK_RETURN_IF_ERROR(ThreadKeeper::IsWatched(pid) ? AwaitAnswers({pid}) : CheckAnswers(pid));
  }
  std::vector<pid_t> users;
  auto states = driver_.States(candidates, kStateMayTake);
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].ok()) {
      users.push_back(candidates[i]);
    } else if (!absl::IsNotFound(states[i].status())) {
      return states[i].status();
    }
  }
  LeaveOutForked(driver_, kStateMayTake, &users);
  // The driver denies knowing it and yet has its memory: a capture would lose that.
  auto view = Devices();
  if (!view.ok()) return users;
  for (const GpuUse& use : view->uses) {
    if (!absl::c_linear_search(candidates, use.pid) || absl::c_linear_search(users, use.pid)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "process ", use.pid, " has memory on ", use.uuid,
        ", but the driver can't checkpoint it (is it a client of MPS, or in another container's PID "
        "namespace?)"));
  }
  return users;
}

absl::StatusOr<DeviceView> JobMover::Devices() {
  RK_ASSIGN_OR_RETURN(DeviceView view, driver_.Devices());
  if (InFirstPidNamespace()) return view;
  // A PID from outside may be somebody else's here.
  std::erase_if(view.uses, [](const GpuUse& use) { return !MapsCuda(use.pid); });
  return view;
}

absl::StatusOr<DeviceView> JobMover::DevicesWithKeptRoom() {
  // Whoever leaves or comes back meanwhile is in one of two lists.
  std::map<pid_t, LedgerEntry> away;
  auto list = [&] {
    for (LedgerEntry& entry : ledger_.List().value_or(std::vector<LedgerEntry>())) {
      if (entry.keeps_room) away.insert_or_assign(entry.pid, std::move(entry));
    }
  };
  list();
  RK_ASSIGN_OR_RETURN(DeviceView view, Devices());
  list();
  for (const auto& [pid, entry] : away) {
    for (const GpuUse& use : entry.uses) {
      auto there = absl::c_find_if(
          view.uses, [&use](const GpuUse& u) { return u.pid == use.pid && u.uuid == use.uuid; });
      const bool is_there = there != view.uses.end();
      // Where the driver does not tell how much it has, it has it.
      const uint64_t had = use.bytes.value_or(0), has = is_there ? there->bytes.value_or(had) : 0;
      if (has >= had) continue;
      if (is_there) {
        there->bytes = had;
      } else {
        view.uses.push_back(use);
      }
      for (GpuDevice& device : view.devices) {
        if (device.uuid == use.uuid) device.free_bytes -= std::min(device.free_bytes, had - has);
      }
    }
  }
  return view;
}

std::vector<pid_t> JobMover::UsersMissingIn(const DeviceView& view) {
  std::vector<pid_t> candidates, users;
  // Where it names one process of ours, it names all, but those on GPUs of which it names none.
  const bool names_all = absl::c_all_of(view.devices, [](const GpuDevice& d) { return d.uses_known; }) &&
                         view.unreachable.empty();
  const bool names_running = names_all && (InFirstPidNamespace() || !view.uses.empty());
  for (pid_t pid : ListProcesses()) {
    const bool named = absl::c_any_of(view.uses, [pid](const GpuUse& use) { return use.pid == pid; });
    auto stat = ReadProcessStat(pid);
    if (!named && stat.ok() && stat->name != kHelperName && MayUseCuda(pid, *stat)) candidates.push_back(pid);
  }
  if (candidates.empty()) return users;
  users = BeingMoved(candidates);
  std::erase_if(candidates, [&users](pid_t pid) { return absl::c_linear_search(users, pid); });
  const std::vector<absl::StatusOr<ProcessState>> states = States(candidates, DriverClient::Purpose::kToShow);
  std::vector<pid_t> found;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (states[i].ok() && (!names_running || *states[i] != ProcessState::kRunning))
      found.push_back(candidates[i]);
  }
  LeaveOutForked(driver_, kShownStateMayTake, &found);
  users.insert(users.end(), found.begin(), found.end());
  return users;
}

absl::StatusOr<std::vector<GpuUse>> JobMover::UsesOf(absl::Span<const pid_t> pids) {
  RK_ASSIGN_OR_RETURN(DeviceView view, Devices());
  return gpu::UsesOf(view.uses, pids);
}

uint64_t JobMover::EstimateBytes(absl::Span<const pid_t> pids) {
  auto view = Devices();
  if (!view.ok()) return 0;
  const std::vector<GpuUse> uses = gpu::UsesOf(view->uses, pids);
  const uint64_t known = KnownBytes(uses) + options_.context_bytes * uses.size();
  const uint64_t most = KnownBytes(MostOfHidden(*view, HiddenIn(*view, view->uses, pids)));
  // More than that is hardly this job's alone.
  return most <= AvailableMemoryBytes().value_or(0) / 2 ? known + most : known;
}

absl::Duration JobMover::MoveMayTake(absl::Span<const GpuUse> uses) const {
  if (options_.move_timeout) return *options_.move_timeout;
  return gpu::MoveMayTake(uses, options_.context_bytes);
}

SessionOptions JobMover::OptionsWith(absl::Duration lock_timeout, absl::Span<const GpuUse> uses) {
  SessionOptions options;
  options.note = [this](absl::Span<const pid_t> pids) { return NoteFor(pids); };
  options.lock_timeout = lock_timeout;
  options.move_timeout = MoveMayTake(uses);
  options.recovery_timeout = std::clamp(options.move_timeout, kShortestRecovery, kLongestRecovery);
  return options;
}

DeviceAreas JobMover::AreasOf(absl::Span<const pid_t> pids) {
  DeviceAreas areas;
  for (pid_t pid : pids) areas[pid] = DeviceAreasOf(pid);
  // Most of it may be out already, or all.
  for (const LedgerEntry& entry : ledger_.Of(pids).value_or(std::vector<LedgerEntry>())) {
    std::vector<DeviceArea>& of_process = areas[entry.pid];
    for (const DeviceArea& area : entry.areas) {
      if (!absl::c_linear_search(of_process, area)) of_process.push_back(area);
    }
  }
  return areas;
}

absl::Status JobMover::PutEntries(pid_t job, absl::Span<const pid_t> pids, absl::Span<const GpuUse> uses,
                                  LedgerEntry::Goal goal, const std::string& why, bool keeps_room) {
  RK_ASSIGN_OR_RETURN(Ledger::Mover mover, ledger_.Enlist());
  DeviceAreas areas = AreasOf(pids);
  const absl::StatusOr<DriverInfo> info = driver_.Info();
  // One that is out already was moved with the driver of that time.
  std::map<pid_t, std::string> drivers;
  for (LedgerEntry& known : ledger_.Of(pids).value_or(std::vector<LedgerEntry>()))
    drivers[known.pid] = std::move(known.driver);
  std::vector<LedgerEntry> entries;
  for (pid_t pid : pids) {
    auto stat = ReadProcessStat(pid);
    if (!stat.ok()) continue;
    LedgerEntry entry;
    entry.pid = pid;
    entry.start_ticks = stat->start_ticks;
    entry.goal = goal;
    entry.job = job;
    if (goal == LedgerEntry::Goal::kRunning) entry.mover = mover.name;
    entry.why = why;
    entry.uses = gpu::UsesOf(uses, {pid});
    entry.areas = std::move(areas[pid]);
    entry.keeps_room = keeps_room;
    entry.driver = drivers.count(pid) > 0 ? drivers[pid] : info.ok() ? info->driver : "";
    entries.push_back(std::move(entry));
  }
  return ledger_.Put(entries);
}

absl::Status JobMover::CheckNobodyElseMoves(absl::Span<const pid_t> pids) {
  RK_ASSIGN_OR_RETURN(Ledger::Mover we, ledger_.Enlist());
  RK_ASSIGN_OR_RETURN(std::vector<LedgerEntry> entries, ledger_.List());
  for (const LedgerEntry& entry : entries) {
    if (!absl::c_linear_search(pids, entry.pid)) continue;
    if (entry.mover != we.name && ledger_.IsBeingMoved(entry)) return IsBeingMovedError(entry.pid);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HeldJob>> JobMover::TakeOut(pid_t job, const std::vector<pid_t>& pids,
                                                           absl::Duration lock_timeout,
                                                           const MoveProgress& progress) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<HeldJob> held, Lock(job, pids, lock_timeout));
  RK_RETURN_IF_ERROR(held->MoveOut(nullptr, progress));
  return held;
}

absl::StatusOr<std::unique_ptr<HeldJob>> JobMover::Lock(pid_t job, const std::vector<pid_t>& pids,
                                                        absl::Duration lock_timeout) {
  RK_ASSIGN_OR_RETURN(ProcessClaim claim, ProcessClaim::Make(ledger_, pids));
  RK_RETURN_IF_ERROR(CheckNobodyElseMoves(pids));
  std::unique_ptr<HeldJob> held(
      new HeldJob(*this, GpuSession(driver_, pids, OptionsWith(lock_timeout)), job));
  held->claim_ = std::make_shared<ProcessClaim>(std::move(claim));
  RK_ASSIGN_OR_RETURN(DriverInfo info, driver_.Info());
  held->record_.cuda_version = info.cuda_version;
  held->record_.driver = info.driver;
  held->record_.pids = pids;
  RK_RETURN_IF_ERROR(held->session_.Begin());
  const std::vector<pid_t> running = held->session_.RunningAtBegin();

  // What parked processes had on the device is in the ledger; what the others have the driver knows.
  if (running.size() < pids.size()) RecallParked(pids);
  RK_ASSIGN_OR_RETURN(std::vector<LedgerEntry> known, ledger_.List());
  for (const LedgerEntry& entry : known) {
    if (!absl::c_linear_search(pids, entry.pid) || absl::c_linear_search(running, entry.pid)) continue;
    held->record_.uses.insert(held->record_.uses.end(), entry.uses.begin(), entry.uses.end());
  }
  held->session_.NoteAreas(AreasOf(pids));
  held->view_ = Devices();
  const absl::StatusOr<DeviceView>& view = held->view_;
  std::vector<GpuUse>& moving = held->moving_;
  if (view.ok()) {
    moving = gpu::UsesOf(view->uses, running);
    held->session_.NoteUses(moving);
    held->record_.uses.insert(held->record_.uses.end(), moving.begin(), moving.end());
    RK_RETURN_IF_ERROR(RecordDevices(*view, &held->record_));
  }
  // A limit that is exceeded in the middle costs the job its life: what may be its counts as its.
  std::vector<GpuUse> expected = moving;
  if (view.ok()) {
    const std::vector<GpuUse> most = MostOfHidden(*view, HiddenIn(*view, moving, running));
    if (most.empty()) held->session_.AllowForMove(MoveMayTake(moving));
    expected.insert(expected.end(), most.begin(), most.end());
  }
  RK_ASSIGN_OR_RETURN(HostMemory::Reservation reserved, host_memory_.Reserve(running, expected));
  held->reserved_.emplace(std::move(reserved));
  held->can_be_kept_ = held->session_.FindThreads().ok();
  held->was_parked_ = running.size() < pids.size();
  RK_RETURN_IF_ERROR(held->session_.EndWatch());
  absl::Status locked = PutEntries(job, running, moving, LedgerEntry::Goal::kRunning, "being moved",
                                   /*keeps_room=*/true);
  if (locked.ok()) {
    held->stands_still_.Restart();
    locked = WithHint(held->session_.Lock(), view);
    if (!locked.ok()) Settle(job, held->session_, running, held->record_.uses, std::string(locked.message()));
  }
  if (!locked.ok()) {
    held->session_.Watch();
    return locked;
  }
  held->held_ = true;
  return held;
}

absl::Status HeldJob::MoveOut(ThreadKeeper* keeper, const MoveProgress& progress) {
  const std::vector<pid_t> running = session_.RunningAtBegin();
  const uint64_t host_before = OwnBytes(running);
  absl::Status moved;
  {
    MoveReporter reporter(running, MoveReporter::Way::kToHost, host_before, WholeMove(moving_), progress);
    if (keeper != nullptr) RK_RETURN_IF_ERROR(session_.LetRun(*keeper, /*for_device_memory=*/true));
    moved = WithHint(session_.MoveToHost(), view_);
  }
  reserved_.reset();
  const absl::Status stand = session_.LetStand();
  if (!moved.ok()) {
    held_ = false;
    mover_.Settle(job_, session_, running, record_.uses, std::string(moved.message()));
    return moved;
  }
  is_out_ = true;
  if (!stand.ok()) return stand;
  if (view_.ok()) mover_.NoteWhatWasHidden(*view_, running, &moving_, this);

  // Other tools have reported success where nothing had moved.
  const uint64_t device_bytes = KnownBytes(moving_);
  const uint64_t host_after = OwnBytes(running);
  const uint64_t grown = host_after > host_before ? host_after - host_before : 0;
  if (!CanBeWholeMove(device_bytes, moving_.size(), grown)) {
    const absl::Status back = Back(nullptr, keeper);
    return absl::DataLossError(
        absl::StrCat("the NVIDIA driver reported that it moved the device memory of process ", job_, ", ",
                     FormatBytes(device_bytes), ", to host memory, which has grown by ", FormatBytes(grown),
                     " only: an image of that would be worthless", back.ok() ? "; the job runs on" : "; and ",
                     back.ok() ? "" : back.message()));
  }
  return absl::OkStatus();
}

absl::Status JobMover::RecordDevices(const DeviceView& view, GpuRecord* record) {
  std::map<std::string, uint64_t> had = BytesByDevice(record->uses);
  record->devices.clear();
  for (const GpuDevice& device : view.devices) {
    if (had.count(device.uuid) == 0) continue;
    if (device.mig) {
      return absl::UnimplementedError(absl::StrCat(
          "GPU ", device.uuid, " is split into MIG instances, of which the driver can't take checkpoints"));
    }
    record->devices.push_back(device);
    had.erase(device.uuid);
  }
  // One that is lost may not even be named.
  for (const auto& [uuid, bytes] : had) record->devices.emplace_back().uuid = uuid;
  return absl::OkStatus();
}

void JobMover::NoteWhatWasHidden(const DeviceView& before, absl::Span<const pid_t> running,
                                 std::vector<GpuUse>* moved, HeldJob* job) {
  const HiddenUses hidden = HiddenIn(before, *moved, running);
  if (hidden.pids.empty()) return;
  auto after = Devices();
  if (!after.ok()) return;
  const std::vector<GpuUse> found = UsesByWhatIsFree(before, *after, *moved, hidden);
  moved->insert(moved->end(), found.begin(), found.end());
  job->record_.uses.insert(job->record_.uses.end(), found.begin(), found.end());
  // A GPU in MIG mode would have refused the move.
  (void)RecordDevices(before, &job->record_);
  // Its room is kept from now on.
  PutEntries(job->job_, running, *moved, LedgerEntry::Goal::kRunning, "being moved", /*keeps_room=*/true)
      .IgnoreError();
}

uint64_t HeldJob::device_bytes() const { return KnownBytes(record_.uses); }

HeldJob::~HeldJob() {
  if (!held_) return;
  if (absl::Status status = Back(); !status.ok()) Log(LogLevel::kError, status.message());
}

absl::Status HeldJob::Back(const MoveProgress& progress, ThreadKeeper* keeper) {
  if (!std::exchange(held_, false)) return absl::OkStatus();
  const std::vector<pid_t> pids = session_.RunningAtBegin();
  const std::vector<GpuUse> uses = gpu::UsesOf(record_.uses, pids);
  RoomByDevice needed;
  for (const auto& [uuid, bytes] : BytesByDevice(uses)) needed[uuid].bytes = bytes;
  const auto room = mover_.AwaitRoom(needed, pids, /*comes_back=*/true);
  absl::Status status = room.status();
  if (status.ok()) {
    MoveReporter reporter(pids, MoveReporter::Way::kToDevice, OwnBytes(pids), WholeMove(uses), progress);
    // The driver would wait for a thread that stands still.
    if (keeper != nullptr) status = session_.LetRun(*keeper, /*for_device_memory=*/false);
    if (!status.ok()) {
      held_ = true;
      return status;
    }
    status = session_.PutBack();
    session_.LetStand().IgnoreError();
  } else if (keeper == nullptr) {
    session_.Watch();
  }
  mover_.Settle(job_, session_, pids, uses, std::string(status.message()));
  if (status.ok()) return status;
  if (session_.NotRunning().empty() || absl::IsDataLoss(status) || session_.hangs() ||
      absl::StrContains(status.message(), kOnlyANewStartHelps))
    return status;
  return Annotate(status,
                  absl::StrCat("putting the device memory of process ", job_,
                               " back; its data is safe in host memory, `rekindle gpu ps` lists it as "
                               "parked, and `rekindle gpu resume ",
                               job_, "` tries again"));
}

absl::Status HeldJob::Park(const std::string& why) {
  const std::vector<pid_t> pids = session_.RunningAtBegin();
  RK_RETURN_IF_ERROR(mover_.PutEntries(job_, pids, record_.uses, LedgerEntry::Goal::kParked, why));
  held_ = false;
  session_.Watch();
  mover_.driver_.Settle(pids);
  return absl::OkStatus();
}

void HeldJob::JobEnded() {
  if (!std::exchange(held_, false)) return;
  const std::vector<pid_t> pids = session_.RunningAtBegin();
  mover_.ledger_.Remove(pids);
  mover_.driver_.Settle(pids);
}

absl::StatusOr<RoomTurns> JobMover::AwaitRoom(const RoomByDevice& needed, absl::Span<const pid_t> pids,
                                              bool comes_back, const std::function<bool()>& cancelled) {
  RoomWait wait;
  wait.for_room = options_.room_timeout;
  // A move of somebody else's is waited for as long as it may take.
  std::vector<GpuUse> moving;
  for (const LedgerEntry& entry : ledger_.List().value_or(std::vector<LedgerEntry>())) {
    if (entry.goal != LedgerEntry::Goal::kRunning) continue;
    absl::c_copy_if(entry.uses, std::back_inserter(moving),
                    [&needed](const GpuUse& use) { return needed.count(use.uuid) > 0; });
  }
  wait.for_turns = MoveMayTake(moving) + options_.room_timeout;
  wait.look = [this, comes_back] { return comes_back ? Devices() : DevicesWithKeptRoom(); };
  wait.cancelled = cancelled;
  wait.is_kept = comes_back;
  return gpu::AwaitRoom(ledger_, needed, pids, wait);
}

absl::Status JobMover::PutOn(pid_t job, const std::vector<pid_t>& pids, const GpuRecord& record,
                             const DevicePairs& pairs, const MoveProgress& progress, ThreadKeeper* keeper,
                             const std::function<bool()>& cancelled) {
  RK_ASSIGN_OR_RETURN(ProcessClaim claim, ProcessClaim::Make(ledger_, pids));
  RK_RETURN_IF_ERROR(CheckNobodyElseMoves(pids));
  return PutOnClaimed(job, pids, record, pairs, progress, keeper, cancelled);
}

absl::Status JobMover::PutOnClaimed(pid_t job, const std::vector<pid_t>& pids, const GpuRecord& record,
                                    const DevicePairs& pairs, const MoveProgress& progress,
                                    ThreadKeeper* keeper, const std::function<bool()>& cancelled) {
  const RoomByDevice needed = RoomFor(record.uses, pairs, options_.context_bytes);
  // What is guessed of the others is good for this move, and no note for a later one.
  std::vector<pid_t> guessed = pids;
  std::erase_if(guessed, [&record](pid_t pid) { return absl::c_linear_search(record.pids, pid); });
  SessionOptions options =
      OptionsWith(absl::ZeroDuration(), guessed.empty() ? record.uses : std::vector<GpuUse>());
  if (!guessed.empty()) options.note = nullptr;
  GpuSession session(driver_, pids, std::move(options));
  session.NoteAreas(AreasOf(pids));
  if (keeper != nullptr) {
    RK_RETURN_IF_ERROR(session.FindThreads());
    RK_RETURN_IF_ERROR(session.LetRun(*keeper, /*for_device_memory=*/false));
  }
  RK_RETURN_IF_ERROR(session.Begin(GpuSession::Locked::kByUs));
  RK_RETURN_IF_ERROR(CheckDriver(pids));
  // What an interrupted move has left off the device still has its room.
  RK_ASSIGN_OR_RETURN(const std::vector<LedgerEntry> known, ledger_.Of(pids));
  const bool comes_back = absl::c_any_of(known, [](const LedgerEntry& entry) { return entry.keeps_room; });
  RK_RETURN_IF_ERROR(
      PutEntries(job, pids, record.uses, LedgerEntry::Goal::kRunning, "being moved", comes_back));
  const auto room = AwaitRoom(needed, pids, comes_back, cancelled);
  absl::Status status = room.status();
  if (status.ok()) {
    MoveStep whole;
    for (const auto& [uuid, on_it] : needed) {
      if (!on_it.is_guess) whole.bytes_total += on_it.bytes;
      whole.devices.push_back(uuid);
    }
    MoveReporter reporter(pids, MoveReporter::Way::kToDevice, OwnBytes(pids), std::move(whole), progress);
    status = session.MoveToDevice(pairs, record.is_told && !pairs.empty());
    if (record.is_told && absl::IsInvalidArgument(status)) {
      status =
          WithMessage(status, absl::StrCat(status.message(),
                                           "; was it on other GPUs than --gpu-map says? Name the one that "
                                           "it was on, or each that it sees"));
    }
    if (!status.ok()) status = WithHint(status, Devices());
  }
  session.LetStand().IgnoreError();
  // Where nobody holds their threads, nobody has taken the place of their watch.
  if (status.ok() && keeper == nullptr) absl::c_for_each(pids, ThreadKeeper::EndWatchOver);
  // Who gives up changes nothing.
  const bool as_it_was = absl::IsCancelled(status) && !known.empty();
  Settle(job, session, pids, record.uses, as_it_was ? known[0].why : std::string(status.message()));
  if (absl::IsCancelled(status) && known.empty()) {
    ledger_.Remove(guessed);
  } else {
    NoteUnplaced(guessed);
  }
  return status;
}

void JobMover::Settle(pid_t job, const GpuSession& session, absl::Span<const pid_t> pids,
                      absl::Span<const GpuUse> uses, const std::string& why) {
  std::vector<pid_t> left, running;
  for (pid_t pid : session.NotRunning()) {
    if (absl::c_linear_search(pids, pid)) left.push_back(pid);
  }
  for (pid_t pid : pids) {
    if (!absl::c_linear_search(left, pid)) running.push_back(pid);
  }
  ledger_.Remove(running);
  if (left.empty()) return;
  absl::Status listed = PutEntries(job, left, uses, LedgerEntry::Goal::kParked, why);
  if (!listed.ok()) {
    // On a full disk what is there already would say for ever that it is being moved. Their watch knows the
    // rest (RecallParked).
    ledger_.Remove(left);
    listed = PutEntries(job, left, uses, LedgerEntry::Goal::kParked, why);
  }
  if (!listed.ok()) {
    Log(LogLevel::kError, absl::StrCat("job ", job, " is parked, and nobody will know: ", listed.message()));
  }
  driver_.Settle(left);
}

absl::StatusOr<DevicePairs> JobMover::PlanRestore(const GpuRecord& record, const DevicePairs& wanted,
                                                  bool ignore_mismatch) {
  RK_ASSIGN_OR_RETURN(DriverInfo info, driver_.Info());
  if (!record.driver.empty() && !info.driver.empty() && record.driver != info.driver && !ignore_mismatch) {
    return absl::FailedPreconditionError(absl::StrCat(
        kDoesNotFit, ": it was taken with NVIDIA driver ", record.driver, " and here is ", info.driver,
        ". The job has the old one's library in its memory: restore it where that driver is"));
  }
  auto view = DevicesWithKeptRoom();
  if (!view.ok()) return wanted;
  RK_ASSIGN_OR_RETURN(DevicePairs pairs, PlanDevices(record.devices, record.uses, *view, wanted));
  if (!pairs.empty() && info.cuda_version < cuda::kFirstVersionWithGpuPairs) {
    return absl::UnimplementedError(absl::StrCat(
        "the state would have to go onto other GPUs than it was on, which needs driver 580 (CUDA 13.0); "
        "this is CUDA ",
        info.cuda_version / 1000, ".", info.cuda_version % 1000 / 10));
  }
  return pairs;
}

absl::Status JobMover::CheckNotMoving(absl::Span<const pid_t> pids) {
  RK_RETURN_IF_ERROR(ProcessClaim::Make(ledger_, pids).status());
  return CheckNobodyElseMoves(pids);
}

std::vector<absl::StatusOr<ProcessState>> JobMover::States(absl::Span<const pid_t> pids,
                                                           DriverClient::Purpose purpose) {
  std::vector<absl::StatusOr<ProcessState>> states;
  std::vector<pid_t> asked;
  std::vector<size_t> places;
  for (pid_t pid : pids) {
    if (absl::Status answers = CheckAnswers(pid); !answers.ok()) {
      states.push_back(answers);
      continue;
    }
    asked.push_back(pid);
    places.push_back(states.size());
    states.push_back(ProcessState::kRunning);  // until it is asked
  }
  if (asked.empty()) return states;
  const bool is_shown = purpose == DriverClient::Purpose::kToShow;
  auto answers = driver_.States(asked, is_shown ? kShownStateMayTake : kStateMayTake, purpose);
  for (size_t i = 0; i < answers.size(); ++i) states[places[i]] = std::move(answers[i]);
  return states;
}

absl::StatusOr<std::vector<pid_t>> JobMover::Recover(absl::Span<const pid_t> except) {
  std::vector<pid_t> freed;
  RK_ASSIGN_OR_RETURN(std::vector<LedgerEntry> entries, ledger_.List());
  if (entries.empty()) return freed;
  const Deadline deadline(kOthersMayTake);
  std::map<pid_t, std::vector<LedgerEntry>> jobs;
  for (const LedgerEntry& entry : entries) {
    if (entry.goal == LedgerEntry::Goal::kParked || absl::c_linear_search(except, entry.pid)) continue;
    // The mover's name has its PID. If that is gone, its helper is at it.
    std::vector<absl::string_view> parts = absl::StrSplit(entry.mover, '-');
    pid_t mover = 0;
    if (parts.size() >= 2 && absl::SimpleAtoi(parts[parts.size() - 2], &mover)) {
      while (!ReadProcessStat(mover).ok() && ledger_.IsBeingMoved(entry) && !deadline.passed()) {
        absl::SleepFor(kLookForOthersEvery);
      }
    }
    if (!ledger_.IsBeingMoved(entry)) jobs[entry.job].push_back(entry);
  }
  absl::Status first;
  for (auto& [job, of_job] : jobs) {
    SortAsMoved(job, &of_job);
    first.Update(RecoverJob(job, of_job, &freed));
  }
  ledger_.RemoveFreeLocks();
  if (!first.ok()) return first;
  return freed;
}

absl::Status JobMover::RecoverJob(pid_t job, const std::vector<LedgerEntry>& entries,
                                  std::vector<pid_t>* freed) {
  std::vector<pid_t> pids;
  for (const LedgerEntry& entry : entries) pids.push_back(entry.pid);
  // Whoever has it lives, though the file that says so has gone.
  const auto claim = ProcessClaim::Make(ledger_, pids);
  if (absl::IsAborted(claim.status())) return absl::OkStatus();
  RK_RETURN_IF_ERROR(claim.status());
  AwaitAnswers(pids).IgnoreError();
  const auto states = States(pids);
  std::vector<pid_t> held;
  GpuRecord record;
  absl::Status first;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (states[i].ok() && *states[i] == ProcessState::kRunning) {
      ThreadKeeper::EndWatchOver(pids[i]);
      ledger_.Remove({pids[i]});
    } else if (states[i].ok() && *states[i] != ProcessState::kFailed) {
      held.push_back(pids[i]);
      record.pids.push_back(pids[i]);
      record.uses.insert(record.uses.end(), entries[i].uses.begin(), entries[i].uses.end());
    } else if (absl::IsNotFound(states[i].status())) {
      ledger_.Remove({pids[i]});
    } else {
      const absl::Status why =
          states[i].ok()
              ? absl::DataLossError(absl::StrCat("the driver says that the GPU state of process ", pids[i],
                                                 " is lost (failed), and ", kOnlyANewStartHelps))
              : states[i].status();
      first.Update(why);
      first.Update(PutEntries(job, {pids[i]}, entries[i].uses, LedgerEntry::Goal::kParked,
                              std::string(why.message())));
    }
  }
  if (held.empty()) return first;
  if (absl::Status put = PutOnClaimed(job, held, record, {}); !put.ok()) {
    // It says so itself, unless it ended before it began.
    auto now = ledger_.List();
    for (const LedgerEntry& entry : now.value_or(std::vector<LedgerEntry>())) {
      if (entry.goal == LedgerEntry::Goal::kParked || !absl::c_linear_search(held, entry.pid)) continue;
      first.Update(
          PutEntries(job, {entry.pid}, entry.uses, LedgerEntry::Goal::kParked, std::string(put.message())));
    }
    first.Update(put);
    return first;
  }
  freed->insert(freed->end(), held.begin(), held.end());
  return first;
}

}  // namespace rekindle::gpu
