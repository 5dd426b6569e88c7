// Before memory goes onto GPUs: whose turn it is, and whether there is room. A driver that finds none loses
// the job, so nothing moves before.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpu_state/driver_client.h"
#include "gpu_state/gpu_device.h"
#include "gpu_state/ledger.h"
#include "gpu_state/machine_turn.h"

namespace rekindle::gpu {

struct RoomNeeded {
  uint64_t bytes = 0;
  // Nobody knows what it has, and this is the most that it can be: a GPU that is as good as empty does too.
  bool is_guess = false;
};
// By UUID.
using RoomByDevice = std::map<std::string, RoomNeeded>;

// For what processes had, as `uses` says, onto the GPUs that take the place of theirs in `pairs`. Where no
// bytes are known of a GPU, it may be as much as the processes have of their own in host memory, and
// `context_bytes`.
RoomByDevice RoomFor(absl::Span<const GpuUse> uses,
                     const std::vector<std::pair<std::string, std::string>>& pairs, uint64_t context_bytes);

// Of a GPU that nobody uses no more than so much is taken.
uint64_t MostOfEmpty(const GpuDevice& device);

// A process of which nobody has noted what it had: it may have been on each of these, and can go back onto
// those that answer.
std::vector<GpuUse> UnknownUses(pid_t pid, absl::Span<const GpuDevice> devices);

struct RoomWait {
  absl::Duration for_room;   // that is not there
  absl::Duration for_turns;  // of others, together
  // Who uses the GPUs. What fails has the driver itself find out.
  std::function<absl::StatusOr<DeviceView>()> look;
  std::function<bool()> cancelled;  // null: never
  // Nobody of this folder takes it (JobMover::DevicesWithKeptRoom): a move by this process that is under way
  // is not waited for, and its turn of the machine is shared.
  bool is_kept = false;
};

// As long as this lives nobody else moves anything onto these GPUs.
struct RoomTurns {
  std::vector<Ledger::Turn> of_folder;
  std::vector<MachineTurn> of_machine;
};

// Until there is room for `needed`; what `pids` have on the GPUs is theirs already. Two that see the same
// room would not both fit. Whoever of another user does not end is waited for as long as for room, and then
// no more, with a warning. ResourceExhausted: there is no room, and who has it. DeadlineExceeded: somebody
// else's turn does not end. Cancelled.
absl::StatusOr<RoomTurns> AwaitRoom(Ledger& ledger, const RoomByDevice& needed, absl::Span<const pid_t> pids,
                                    const RoomWait& wait);

}  // namespace rekindle::gpu
