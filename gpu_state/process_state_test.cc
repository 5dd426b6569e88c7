#include "gpu_state/process_state.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace rekindle::gpu {
namespace {

using S = ProcessState;
using A = Action;

// Every state with every action: four of sixteen are allowed.
TEST(ProcessState, EveryTransition) {
  const std::map<std::pair<S, A>, S> allowed = {
      {{S::kRunning, A::kLock}, S::kLocked},
      {{S::kLocked, A::kCheckpoint}, S::kCheckpointed},
      {{S::kCheckpointed, A::kRestore}, S::kLocked},
      {{S::kLocked, A::kUnlock}, S::kRunning},
  };
  for (S state : kAllStates) {
    for (A action : kAllActions) {
      auto it = allowed.find({state, action});
      auto after = StateAfter(state, action);
      EXPECT_EQ(after.has_value(), it != allowed.end()) << NameOf(state) << " " << NameOf(action);
      if (after && it != allowed.end()) {
        EXPECT_EQ(*after, it->second);
      }
    }
  }
}

TEST(ProcessState, NamesAreReadBack) {
  for (S state : kAllStates) EXPECT_EQ(StateNamed(NameOf(state)), state);
  for (A action : kAllActions) EXPECT_EQ(ActionNamed(NameOf(action)), action);
  EXPECT_FALSE(StateNamed("Running"));
  EXPECT_FALSE(ActionNamed(""));
  EXPECT_EQ(NameOf(static_cast<S>(7)), "unknown");
}

}  // namespace
}  // namespace rekindle::gpu
