// Names as another process knows them, looked up so that nobody who may change its folders can lead us
// elsewhere.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle {

// What has the absolute name `path` where `root` is the root folder ("/" or "/proc/PID/root"): a descriptor
// that only says where it is (O_PATH), so that nothing happens to a device or a pipe. Symbolic links are not
// followed: what stands at the end of `path` may be one itself. NotFound: there is nothing of that name, or a
// link on the way.
absl::StatusOr<UniqueFd> OpenInRoot(const std::string& root, const std::string& path);

// The same for what lies directly in `folder` or below it, under a relative name. NotFound also where the
// name would lead out of it.
absl::StatusOr<UniqueFd> OpenBeneath(int folder, const std::string& name);

// What a descriptor stands for, such a place among others, opened anew: not valid, and errno. Thread-safe. On
// a thread that sees another /proc, a container's, that works if the process has called
// RememberOwnDescriptors() before.
UniqueFd Reopen(int fd, int flags);
void RememberOwnDescriptors();

// The regular file at such a place, opened for reading. FailedPrecondition: it is something else.
absl::StatusOr<UniqueFd> OpenFileAt(int place);

}  // namespace rekindle
