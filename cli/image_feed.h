// An image that comes from a descriptor, on its way to a service.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"

namespace rekindle::cli {

// What `fd` gives until its end goes into `receiver`. False: that wants no more of it. `given_up`, asked
// every second while nothing comes, and told for how long that has been so: what there is was all that comes.
absl::StatusOr<bool> Feed(int fd, ImageReceiver& receiver,
                          absl::FunctionRef<bool(absl::Duration waited)> given_up);
// The same. DeadlineExceeded: some of it has come, and then nothing for so long.
absl::StatusOr<bool> Feed(int fd, ImageReceiver& receiver, absl::Duration patience);

// Reads a pipe to its end, or until `stop` is readable: whoever writes into it shall not find it closed for
// an image that was here already. Nothing where `fd` is no pipe.
void Drain(int fd, int stop);

}  // namespace rekindle::cli
