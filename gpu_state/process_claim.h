// Whoever moves processes has a claim on them: one caller at a time, of this Rekindle and of others.
#pragma once

#include <sys/types.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "gpu_state/cuda_processes.h"
#include "gpu_state/ledger.h"

namespace rekindle::gpu {

// Lasts as long as this.
class ProcessClaim {
 public:
  // Aborted: somebody else has one of them.
  static absl::StatusOr<ProcessClaim> Make(Ledger& ledger, absl::Span<const pid_t> pids) {
    ProcessClaim claim;
    for (pid_t pid : pids) {
      auto turn = ledger.TakeTurn(pid);
      if (absl::IsUnavailable(turn.status())) return IsBeingMovedError(pid);
      RK_RETURN_IF_ERROR(turn.status());
      claim.turns_.push_back(*std::move(turn));
    }
    return claim;
  }

 private:
  std::vector<Ledger::Turn> turns_;
};

}  // namespace rekindle::gpu
