// The states in which the driver sees a CUDA process, and what leads from one to another: the driver's rules
// as a table.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu {

using cuda::ProcessState;

enum class Action { kLock, kCheckpoint, kRestore, kUnlock };

inline constexpr ProcessState kAllStates[] = {ProcessState::kRunning, ProcessState::kLocked,
                                              ProcessState::kCheckpointed, ProcessState::kFailed};
inline constexpr Action kAllActions[] = {Action::kLock, Action::kCheckpoint, Action::kRestore,
                                         Action::kUnlock};

// Nothing: the driver refuses this action in this state.
std::optional<ProcessState> StateAfter(ProcessState state, Action action);

absl::string_view NameOf(ProcessState state);  // "running", …
absl::string_view NameOf(Action action);       // "lock", …; the words of `cuda-checkpoint --action`
std::optional<ProcessState> StateNamed(absl::string_view name);
std::optional<Action> ActionNamed(absl::string_view name);

// In a driver's error of a process that no further try brings back.
inline constexpr char kOnlyANewStartHelps[] = "only a new start of the job helps";

}  // namespace rekindle::gpu
