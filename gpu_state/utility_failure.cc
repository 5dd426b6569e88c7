#include "gpu_state/utility_failure.h"

#include <signal.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "gpu_state/cuda_abi.h"

namespace rekindle::gpu {
namespace {

// What a shell, or whoever has wrapped the utility in a script, ends with.
constexpr int kCannotBeRun = 126, kNoSuchProgram = 127;
constexpr size_t kMostPrinted = 1000;

// As cuGetErrorString tells them.
struct Words {
  const char* text;
  cuda::Result result;
};
constexpr Words kWords[] = {
    {"invalid argument", cuda::kInvalidValue},
    {"out of memory", cuda::kOutOfMemory},
    {"initialization error", cuda::kNotInitialized},
    {"driver shutting down", cuda::kDeinitialized},
    {"invalid device context", cuda::kInvalidContext},
    {"OS call failed or operation not supported on this OS", cuda::kOperatingSystem},
    {"the operation cannot be performed in the present state", cuda::kIllegalState},
    {"device not ready", cuda::kNotReady},
    {"operation not permitted", cuda::kNotPermitted},
    {"operation not supported", cuda::kNotSupported},
};

// 0: it said nothing that is known.
cuda::Result ResultIn(absl::string_view printed) {
  const size_t end = printed.rfind('"');
  if (end == absl::string_view::npos || end == 0) return cuda::kSuccess;
  const size_t begin = printed.rfind('"', end - 1);
  if (begin == absl::string_view::npos) return cuda::kSuccess;
  const absl::string_view said = printed.substr(begin + 1, end - begin - 1);
  for (const Words& words : kWords) {
    if (said == words.text) return words.result;
  }
  return cuda::kSuccess;
}

// It prints its options, or names one, where it was given one that it does not know.
bool IsWrongUse(absl::string_view printed) {
  for (absl::string_view sign : {"--get-state", "nrecognized option", "nknown option", "nvalid option"}) {
    if (absl::StrContains(printed, sign)) return true;
  }
  return false;
}

bool IsNobodys(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

absl::Status UtilityFailure(pid_t pid, absl::string_view what, const CommandResult& result) {
  const absl::string_view printed = absl::StripAsciiWhitespace(result.output);
  const std::string text =
      absl::StrCat("process ", pid, ": cuda-checkpoint ", what, ": ", result.exit.ToString(), ": ",
                   printed.empty() ? "it said nothing" : printed.substr(0, kMostPrinted));
  if (result.exit.signal != 0)
    return absl::UnavailableError(absl::StrCat(text, "; whether it has done its work is not known"));
  if (result.exit.code == kCannotBeRun || result.exit.code == kNoSuchProgram) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, "; it can't be run: see whether `cuda-checkpoint --help` works"));
  }
  // Where the utility itself has no access to the driver, nothing is said of the process.
  const bool not_let_in = absl::StartsWithIgnoreCase(printed, "Error initializing CUDA");
  switch (not_let_in ? cuda::kSuccess : ResultIn(printed)) {
    case cuda::kNotInitialized:
    case cuda::kDeinitialized:
    case cuda::kInvalidContext:
      return absl::NotFoundError(text);
    case cuda::kInvalidValue:
      return absl::InvalidArgumentError(text);
    case cuda::kOperatingSystem:
      return IsNobodys(pid) ? absl::NotFoundError(text) : absl::InternalError(text);
    case cuda::kOutOfMemory:
      return absl::ResourceExhaustedError(text);
    case cuda::kIllegalState:
      return absl::FailedPreconditionError(text);
    case cuda::kNotReady:
      return absl::DeadlineExceededError(text);
    case cuda::kNotPermitted:
      return absl::PermissionDeniedError(text);
    case cuda::kNotSupported:
      return absl::UnimplementedError(text);
    default:
      break;
  }
  if (not_let_in) {
    return absl::InternalError(
        absl::StrCat(text, "; the utility can't use the driver itself: see whether nvidia-smi works"));
  }
  if (IsWrongUse(printed)) {
    return absl::UnimplementedError(
        absl::StrCat(text, "; this version of the utility does not know that: install a newer one"));
  }
  if (IsNobodys(pid)) return absl::NotFoundError(text);
  return absl::InternalError(text);
}

absl::Status UtilityNotRun(pid_t pid, absl::string_view what, const absl::Status& status) {
  const std::string text = absl::StrCat("process ", pid, ": cuda-checkpoint ", what, ": ", status.message());
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return absl::FailedPreconditionError(
          absl::StrCat(text, "; NVIDIA's utility is not there any more: install it again, in PATH"));
    case absl::StatusCode::kPermissionDenied:
      return absl::PermissionDeniedError(absl::StrCat(text, "; make it executable"));
    case absl::StatusCode::kDeadlineExceeded:
      return absl::UnavailableError(absl::StrCat(text,
                                                 "; it was killed, and whether it has done its work is not "
                                                 "known: see whether `nvidia-smi` answers"));
    default:
      return WithMessage(status, text);
  }
}

}  // namespace rekindle::gpu
