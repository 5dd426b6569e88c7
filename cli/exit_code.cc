#include "cli/exit_code.h"

#include "absl/strings/match.h"

namespace rekindle::cli {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kDone;
    case absl::StatusCode::kInvalidArgument:
      return kBadUsage;
    case absl::StatusCode::kNotFound:
      // The store's word for it, of an older daemon's, too.
      if (absl::StartsWith(status.message(), "there is no store at ")) return kNoStore;
      // A file or folder of the user's: that says nothing of whether there is an image.
      return absl::EndsWith(status.message(), ": No such file or directory") ? kFailed : kNotFound;
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
