// Everything Rekindle needs on this machine, checked one by one, each miss with its cure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/node.h"
#include "dedup_store/limits.h"
#include "dedup_store/scrub.h"
#include "dedup_store/store.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

// What CRIU and the kernel need, then what Rekindle itself does. Changes nothing on the machine,
// but initialises the GPU driver if there is one. Thread-safe.
std::vector<v1::Check> ExamineMachine(Node& node);

// Single checks, for tests and for whoever wants to know one thing.
// `opened`: what came of opening it.
v1::Check CheckStore(const std::string& path, const absl::Status& opened);
// Does the store take another image, and for how long? `path`: its own.
v1::Check CheckRoom(const std::string& path, const store::StoreStats& stats,
                    const store::StoreLimits& limits);
// What is known of damage in it. `now`: to say how long ago it was read again.
v1::Check CheckScrub(const absl::StatusOr<store::ScrubStatus>& status, absl::Time now);
// Do images that are to go elsewhere get there? `copies`: what the caller may see of them.
v1::Check CheckCopies(const std::vector<v1::CopyState>& copies);
v1::Check CheckWritableFolder(const std::string& name, const std::string& path);
// Can containers' cgroups be reached? `first`, `mountinfo`: the contents of /proc/1/cgroup,
// /proc/self/mountinfo.
v1::Check CheckCgroupsOfOthers(const std::string& first, const std::string& mountinfo);
v1::Check CheckHugePages(const std::string& setting_file);
// Can GPU state be captured? `proc_folder`: the kernel driver's.
v1::Check CheckGpus(gpu::JobMover& gpus, const std::string& proc_folder);

}  // namespace rekindle::daemon
