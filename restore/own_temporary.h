// A /tmp and /var/tmp, and a /dev/shm, that are a copy's own: in memory, bounded, and gone with the last
// process that has them; and folders that it can't change.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

// What both together may have where nothing else is said, as on Lambda.
inline constexpr uint64_t kMostTemporary = uint64_t{512} << 20;
// Of a /dev/shm: as much as the kernel gives one by itself, half of the machine's memory.
inline constexpr uint64_t kKernelsShare = UINT64_MAX;

struct OwnTemporary {
  uint64_t bytes = 0;             // that /tmp and /var/tmp together may have; 0: the machine's are used
  std::vector<std::string> keep;  // folders in these that stay where they are; what isn't there is left out
  std::vector<std::string> read_only = {};  // folders, anywhere, in which nothing can be changed
  uint64_t shared_memory = 0;  // that /dev/shm may have besides, kKernelsShare; 0: the machine's is used
};

// In the mount namespace of the calling thread, which must not hand its mounts on to others. A folder that
// the machine does not have is left out. Thread-safe.
absl::Status MountOwnTemporary(const OwnTemporary& temporary);

// The same for folders: what is opened by their names from now on can't be changed, and set-user-ID programs
// in them have no rights. One that lies on what is read-only already stays as it is. Not what is mounted in
// them. FailedPrecondition: a name is that of something else, of a symbolic link, say; Aborted: it was
// replaced meanwhile; nothing but the folder that the name stood for is mounted on. Thread-safe.
absl::Status MakeReadOnly(const std::vector<std::string>& folders);

// A mount namespace that is otherwise the caller's, for setns. Starts a thread. Thread-safe.
absl::StatusOr<UniqueFd> MountsWithOwnTemporary(const OwnTemporary& temporary);

// In such a mount namespace: gives what it has there, as far as a size is named, that size.
// ResourceExhausted: more lies there. Thread-safe.
absl::Status ResizeOwnTemporary(uint64_t bytes, uint64_t shared_memory);

// Would this path lie in a /tmp, /var/tmp or /dev/shm that is a copy's own, in which these folders stay the
// machine's?
bool LiesInOwnTemporary(absl::string_view path, const std::vector<std::string>& keep);

}  // namespace rekindle::restore
