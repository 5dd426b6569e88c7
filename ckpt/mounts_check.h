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
absl::Status CheckMounts(const std::vector<pid_t>& pids, const criu::JobNamespaces& namespaces,
                         std::vector<std::string>* warnings);

// How its mounts hear of others (v1::kPrivateMounts, …); empty: they are ours.
std::string OwnMountsOf(pid_t root);

// The same of two lists. Shared are those that hear of ours, and have ours hear of theirs. Where some hear of
// others in one way and some in another: kPrivateMounts.
std::string TieOfMounts(absl::string_view theirs, absl::string_view ours);

// Where a part of a file system is mounted (a file or folder from outside, as container engines do it) of
// which the whole is mounted nowhere below `mountinfo`; the first such place, empty: there is none. The mount
// of / does not count.
std::string MountFromOutside(absl::string_view mountinfo);

// Where something is mounted that is not mounted there in `ours` with the same options.
struct MountsOfTheirs {
  std::string made;  // the first that the job needs, and what: "/tmp (ext4, rw,relatime)"; empty: none
  std::vector<std::string> left;  // where something is left that was unmounted, or covered, in ours since
};
MountsOfTheirs MountsOfTheirsAlone(absl::string_view theirs, absl::string_view ours);

// The places where something is mounted in `ours` alone.
std::vector<std::string> MountsOfOursAlone(absl::string_view theirs, absl::string_view ours);

}  // namespace rekindle::ckpt
