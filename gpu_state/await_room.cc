#include "gpu_state/await_room.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/shown_command.h"
#include "base/status.h"
#include "gpu_state/device_plan.h"
#include "gpu_state/host_memory.h"

namespace rekindle::gpu {
namespace {

constexpr absl::Duration kLookForRoomEvery = absl::Milliseconds(200);
constexpr absl::Duration kLookForTurnEvery = absl::Milliseconds(50);
constexpr int kAskForHolderAtEach = 20;
// What a driver keeps for itself on a GPU that nobody uses is less than this share of it.
constexpr uint64_t kEmptyShare = 16;

// Those of others than root and ourselves may keep it as long as they like.
bool IsStranger(const TurnHolder& holder) { return holder.uid != 0 && holder.uid != ::geteuid(); }

class Turns {
 public:
  Turns(Ledger& ledger, const RoomByDevice& needed, const RoomWait& wait)
      : ledger_(ledger), needed_(needed), for_strangers_(wait.for_room), is_kept_(wait.is_kept) {}

  // Unavailable: somebody has one.
  absl::StatusOr<RoomTurns> Take() {
    RoomTurns turns;
    for (const auto& [uuid, room] : needed_) {
      absl::StatusOr<Ledger::Turn> of_folder = ledger_.TakeTurn(uuid);
      if (absl::IsUnavailable(of_folder.status()) && is_kept_) {
        if (std::optional<MachineTurn> joined = MachineTurn::Join(uuid)) {
          turns.of_machine.push_back(*std::move(joined));
          continue;
        }
      }
      RK_RETURN_IF_ERROR(of_folder.status());
      turns.of_folder.push_back(*std::move(of_folder));
      if (passed_over_.count(uuid) > 0) continue;
      absl::StatusOr<MachineTurn> of_machine = MachineTurn::Take(uuid);
      if (absl::IsUnavailable(of_machine.status()) && PassesOver(uuid)) continue;
      RK_RETURN_IF_ERROR(of_machine.status());
      turns.of_machine.push_back(*std::move(of_machine));
    }
    return turns;
  }

 private:
  bool PassesOver(const std::string& uuid) {
    if (looks_++ % kAskForHolderAtEach == 0) holder_ = HolderOfMachineTurn(uuid);
    // Who can't be asked is no Rekindle, or has just ended.
    if (holder_ && !IsStranger(*holder_)) return false;
    waited_ += kLookForTurnEvery;
    if (waited_ < for_strangers_) return false;
    passed_over_.insert(uuid);
    Log(LogLevel::kWarning,
        absl::StrCat("memory goes onto ", uuid, " though ",
                     !holder_ ? "somebody"
                              : absl::StrCat("process ", holder_->pid, " (", ShownCommandOf(holder_->pid),
                                             ") of uid ", holder_->uid),
                     " says that it moves some there, since that has not ended within ",
                     absl::FormatDuration(for_strangers_)));
    return true;
  }

  Ledger& ledger_;
  const RoomByDevice& needed_;
  const absl::Duration for_strangers_;
  const bool is_kept_;
  int looks_ = 0;
  std::optional<TurnHolder> holder_;
  absl::Duration waited_;
  std::set<std::string> passed_over_;
};

// Of what nobody knows the size of.
absl::Status CheckRoomForGuess(const std::string& uuid, uint64_t bytes, absl::Span<const pid_t> pids,
                               const DeviceView& view) {
  const auto device = absl::c_find_if(view.devices, [&](const GpuDevice& d) { return d.uuid == uuid; });
  const bool others = absl::c_any_of(view.uses, [&](const GpuUse& use) {
    return use.uuid == uuid && !absl::c_linear_search(pids, use.pid);
  });
  if (device != view.devices.end() && device->memory_known && !others &&
      device->total_bytes - device->free_bytes <= MostOfEmpty(*device))
    return absl::OkStatus();
  const absl::Status room = CheckRoom({{uuid, bytes}}, view);
  if (!absl::IsResourceExhausted(room)) return room;
  return absl::ResourceExhaustedError(absl::StrCat(
      "what the job had on which GPU is not known, since the note of it is gone (was the runtime folder "
      "removed, or is it another one?), and going by its host memory it may not fit, of which it would die: ",
      room.message(),
      ". On a GPU that nobody uses that is not asked; and if you know where it was, say it: with "
      "`rekindle gpu resume` and --gpu-map OLD=OLD (or OLD=OTHER) there is room needed there alone"));
}

absl::Status CheckRoomFor(const RoomByDevice& needed, absl::Span<const pid_t> pids, const DeviceView& view) {
  std::map<std::string, uint64_t> known;
  const std::map<std::string, uint64_t> theirs = BytesByDevice(UsesOf(view.uses, pids));
  absl::Status guesses;
  for (const auto& [uuid, room] : needed) {
    const auto has = theirs.find(uuid);
    const uint64_t missing = room.bytes - std::min(room.bytes, has == theirs.end() ? 0 : has->second);
    if (room.is_guess) {
      guesses.Update(CheckRoomForGuess(uuid, missing, pids, view));
    } else {
      known[uuid] = missing;
    }
  }
  RK_RETURN_IF_ERROR(CheckRoom(known, view));
  return guesses;
}

}  // namespace

RoomByDevice RoomFor(absl::Span<const GpuUse> uses,
                     const std::vector<std::pair<std::string, std::string>>& pairs, uint64_t context_bytes) {
  std::map<std::string, uint64_t> known;
  std::map<std::string, std::set<pid_t>> unknown;
  for (const GpuUse& use : uses) {
    if (use.bytes) {
      known[use.uuid] += *use.bytes;
    } else {
      unknown[use.uuid].insert(use.pid);
    }
  }
  RoomByDevice needed;
  auto at = [&](const std::string& uuid) -> RoomNeeded& {
    auto pair = absl::c_find_if(pairs, [&uuid](const auto& p) { return p.first == uuid; });
    return needed[pair == pairs.end() ? uuid : pair->second];
  };
  for (const auto& [uuid, bytes] : known) at(uuid).bytes += bytes;
  for (const auto& [uuid, pids] : unknown) {
    // What a job had together is noted with one of its processes.
    if (known.count(uuid) > 0) continue;
    RoomNeeded& room = at(uuid);
    room.is_guess = true;
    room.bytes += OwnBytes(std::vector<pid_t>(pids.begin(), pids.end())) + context_bytes * pids.size();
  }
  return needed;
}

uint64_t MostOfEmpty(const GpuDevice& device) { return device.total_bytes / kEmptyShare; }

std::vector<GpuUse> UnknownUses(pid_t pid, absl::Span<const GpuDevice> devices) {
  std::vector<GpuUse> uses;
  for (const GpuDevice& device : devices) {
    if (!device.lost) uses.push_back({pid, device.uuid, std::nullopt});
  }
  return uses;
}

absl::StatusOr<RoomTurns> AwaitRoom(Ledger& ledger, const RoomByDevice& needed, absl::Span<const pid_t> pids,
                                    const RoomWait& wait) {
  const Deadline others_end(wait.for_turns);
  absl::Duration without_room;
  Turns turns(ledger, needed, wait);
  for (;;) {
    if (wait.cancelled && wait.cancelled()) {
      return absl::CancelledError("it was given up while it waited for room on the GPU: nothing was moved");
    }
    absl::StatusOr<RoomTurns> ours = turns.Take();
    if (ours.ok()) {
      const absl::StatusOr<DeviceView> view = wait.look();
      if (!view.ok()) return ours;
      const absl::Status room = CheckRoomFor(needed, pids, *view);
      if (room.ok()) return ours;
      if (!absl::IsResourceExhausted(room) || without_room >= wait.for_room) return room;
      without_room += kLookForRoomEvery;
    } else if (!absl::IsUnavailable(ours.status())) {
      return ours.status();
    } else if (others_end.passed()) {
      return absl::DeadlineExceededError(
          "another job is being moved onto the same GPU, and that does not end");
    }
    const absl::Duration pause = ours.ok() ? kLookForRoomEvery : kLookForTurnEvery;
    ours = absl::UnavailableError("");
    absl::SleepFor(pause);
  }
}

}  // namespace rekindle::gpu
