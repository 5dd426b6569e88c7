#include "gpu_state/process_state.h"

#include <cstddef>

namespace rekindle::gpu {
namespace {

struct Transition {
  ProcessState from;
  Action action;
  ProcessState to;
};

// Source: CUDA driver API reference, cuCheckpointProcessLock and its neighbours.
constexpr Transition kTransitions[] = {
    {ProcessState::kRunning, Action::kLock, ProcessState::kLocked},
    {ProcessState::kLocked, Action::kCheckpoint, ProcessState::kCheckpointed},
    {ProcessState::kCheckpointed, Action::kRestore, ProcessState::kLocked},
    {ProcessState::kLocked, Action::kUnlock, ProcessState::kRunning},
};

constexpr absl::string_view kStateNames[] = {"running", "locked", "checkpointed", "failed"};
constexpr absl::string_view kActionNames[] = {"lock", "checkpoint", "restore", "unlock"};

}  // namespace

std::optional<ProcessState> StateAfter(ProcessState state, Action action) {
  for (const Transition& t : kTransitions) {
    if (t.from == state && t.action == action) return t.to;
  }
  return std::nullopt;
}

absl::string_view NameOf(ProcessState state) {
  const auto i = static_cast<size_t>(state);
  return i < std::size(kStateNames) ? kStateNames[i] : "unknown";
}

absl::string_view NameOf(Action action) { return kActionNames[static_cast<size_t>(action)]; }

std::optional<ProcessState> StateNamed(absl::string_view name) {
  for (ProcessState state : kAllStates) {
    if (NameOf(state) == name) return state;
  }
  return std::nullopt;
}

std::optional<Action> ActionNamed(absl::string_view name) {
  for (Action action : kAllActions) {
    if (NameOf(action) == name) return action;
  }
  return std::nullopt;
}

}  // namespace rekindle::gpu
