// What a member of a group does alike in a checkpoint and in a restore.
#pragma once

#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/groups.h"

namespace rekindle::daemon {

// A coordinator that restores a group says so often that it lives (an empty RestorePartRequest) to those who
// wait for others: its kernel would answer for one that hangs.
inline constexpr absl::Duration kCoordinatorSaysItLives = absl::Seconds(5);

// Has `part` listen to its coordinator on a thread of its own, for as long as this lives.
template <typename Part, typename Coordinator>
class PartListener {
 public:
  PartListener(Part& part, const Coordinator& coordinator)
      : part_(part), coordinator_(coordinator), thread_([&part] { part.Listen(); }) {}
  ~PartListener() {
    // For the coordinator to end the call, once it has been told everything.
    constexpr absl::Duration kEndMayTake = absl::Seconds(5);
    part_.AwaitEnd(kEndMayTake);
    coordinator_.hang_up();
    thread_.join();
  }
  PartListener(const PartListener&) = delete;
  PartListener& operator=(const PartListener&) = delete;

 private:
  Part& part_;
  const Coordinator& coordinator_;
  std::thread thread_;
};

// That a part has failed is its last event; the call itself goes well.
template <typename Request, typename Event>
void SendFailure(const Caller2Way<Request, Event>& coordinator, const absl::Status& status) {
  Event event;
  *event.mutable_failed() = ToProto(status);
  coordinator.write(event);
}

}  // namespace rekindle::daemon
