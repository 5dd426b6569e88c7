// Jobs among other mounts than ours: which of them can be captured.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "criu/job_namespaces.h"

namespace rekindle::ckpt {

// Of a tree whose PIDs are ours, the root's first, with the namespaces that were found of the root. A mount
// namespace of its own can be made again where all that is mounted in it is mounted the same here.
// Unimplemented: something is not; the mounts are a container's; or they are the machine's while we are in a
// container. Aborted: a process has gone among others since. Thread-safe.
absl::Status CheckMounts(const std::vector<pid_t>& pids, const criu::JobNamespaces& namespaces);

// How its root mount hears of others (v1::kPrivateMounts, …); empty: its mounts are ours.
std::string OwnMountsOf(pid_t root);

// Where a part of a file system is mounted (a file or folder from outside, as container engines do it) of
// which the whole is mounted nowhere below `mountinfo`; the first such place, empty: there is none. The mount
// of / does not count.
std::string MountFromOutside(absl::string_view mountinfo);

// The first place where something is mounted that is not mounted there in `ours` with the same options, and
// what: "/tmp (ext4, rw,relatime)"; empty: there is none.
std::string MountOfTheirsAlone(absl::string_view theirs, absl::string_view ours);

// The places where something is mounted in `ours` alone.
std::vector<std::string> MountsOfOursAlone(absl::string_view theirs, absl::string_view ours);

}  // namespace rekindle::ckpt
