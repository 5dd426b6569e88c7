// Folders that the service makes in STORE/functions, whose contents are their owners'. All functions are
// thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"

namespace rekindle::functions {

// What a crash has left under these names is removed at the next start.
inline constexpr absl::string_view kStagingPrefix = ".deploying-";
inline constexpr absl::string_view kRemovedPrefix = ".removed-";

// It may be there. With that mode, whatever the umask.
absl::Status MakeFolder(const std::string& path, mode_t mode);

// A new folder there, in which this user may make files by its descriptor. Who can't get to it by its name
// can't change them.
absl::StatusOr<UniqueFd> MakeFolderFor(const std::string& path, const Owner& owner);

}  // namespace rekindle::functions
