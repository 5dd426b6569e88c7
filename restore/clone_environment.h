// What the machine offers to clones, templates and the pager, checked one by one (see also
// criu/environment.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "criu/environment.h"

namespace rekindle::restore {

// All of the below. Changes nothing on the machine; makes a process in namespaces of its own, which ends at
// once. Thread-safe.
std::vector<criu::EnvironmentCheck> CheckCloneEnvironment();

// "userfaultfd_events": what the pager asks of a userfaultfd beyond there being one.
criu::EnvironmentCheck CheckUserfaultfdFeatures();
// Of the features that the pager uses (linux/userfaultfd.h), those that are not in `features`, in words.
std::vector<std::string> MissingUserfaultfdFeatures(uint64_t features);

// "sandbox": the namespaces of one can be made, and PIDs chosen in them.
criu::EnvironmentCheck CheckSandbox();
// "namespaces": how many the kernel allows. `directory` is /proc/sys/user.
criu::EnvironmentCheck CheckNamespaceLimits(const std::string& directory);
// "cgroups": limits can be set. `mounts` is /proc/self/mounts.
criu::EnvironmentCheck CheckCgroups(const std::string& mounts);
// "open_files": `hard_limit` is what this process, its pager and jobs may have open (RLIMIT_NOFILE).
criu::EnvironmentCheck CheckOpenFiles(uint64_t hard_limit);
// "pidfd_getfd": descriptors can be taken from a process.
criu::EnvironmentCheck CheckPidfdGetfd();
// "programs": Rekindle's own that it starts are there.
criu::EnvironmentCheck CheckPrograms();

}  // namespace rekindle::restore
