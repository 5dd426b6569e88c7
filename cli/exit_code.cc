#include "cli/exit_code.h"

#include <cerrno>

#include "base/error_cause.h"
#include "base/status.h"

namespace rekindle::cli {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kDone;
    case absl::StatusCode::kInvalidArgument:
      return kBadUsage;
    case absl::StatusCode::kNotFound:
      if (IsOfNoStore(status)) return kNoStore;
      // A file or folder of the user's: that says nothing of whether there is an image.
      return ErrnoOf(status) == ENOENT ? kFailed : kNotFound;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kNotPermitted;
    case absl::StatusCode::kUnimplemented:
      return kUnsupported;
    default:
      return kFailed;
  }
}

}  // namespace rekindle::cli
