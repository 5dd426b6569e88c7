// Sets of logical processors, and on which of them a thread may run.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// By number.
using Processors = std::set<int>;

// As the kernel writes them: "0-3,8"; nothing for none.
std::string FormatProcessors(const Processors& processors);
// InvalidArgument: it is no such list, or has a number that no machine has.
absl::StatusOr<Processors> ParseProcessors(absl::string_view text);

// Those of this machine that are switched on.
absl::StatusOr<Processors> OnlineProcessors();

// Those that a thread (0: the calling one) may run on. NotFound: there is none.
absl::StatusOr<Processors> AffinityOf(pid_t thread);
// The kernel leaves out what the thread's cpuset does not have. InvalidArgument: nothing is left then.
absl::Status SetAffinity(pid_t thread, const Processors& processors);
// For one that is not to be bound: where these are all that its cpuset has it gets those that come to the
// cpuset later, too, which from Linux 6.2 on SetAffinity() would keep it from.
absl::Status SetAffinityWithinCpuset(pid_t thread, const Processors& processors);

}  // namespace rekindle
