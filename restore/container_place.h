// A container that runs rekindle-init without a command is a place for a job that comes back. It is told
// which job that is, and ends as that does, so that the container's engine learns of it. This part of the
// file is also rekindle-init's, which uses nothing of Rekindle's libraries.
#pragma once

#include <sys/types.h>

namespace rekindle::restore {

// The name (/proc/PID/comm) of a rekindle-init that waits to be told.
constexpr char kPlaceName[] = "rekindle-place";
// The highest real-time signal of all C libraries. Its value is the job's number in the place's PID
// namespace.
constexpr int kPlaceIsTaken = 64;

// Tells `place` that the process `job` came back in it; nothing where it is no place that wants to know. Both
// are our numbers. Thread-safe.
void TellPlace(pid_t place, pid_t job);

}  // namespace rekindle::restore
