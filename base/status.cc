#include "base/status.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "base/error_cause.h"

namespace rekindle {
namespace {

absl::Status StatusOfErrno(int error_number, absl::string_view what) {
  char buffer[128];
  const char* reason = strerror_r(error_number, buffer, sizeof buffer);
  std::string message = absl::StrCat(what, ": ", reason);
  if (error_number == EMFILE)
    absl::StrAppend(&message, ": raise the limit (`ulimit -n`; LimitNOFILE= of rekindled's unit)");
  switch (error_number) {
    case ENOENT:
    case ESRCH:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case E2BIG:
    case EINVAL:
    case ENAMETOOLONG:
    case ELOOP:
      return absl::InvalidArgumentError(message);
    case ENOSYS:
    case EOPNOTSUPP:
      return absl::UnimplementedError(message);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(message);
    case EINTR:
    case ECANCELED:
      return absl::CancelledError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::Status ErrnoStatus(int error_number, absl::string_view what) {
  return WithErrno(StatusOfErrno(error_number, what), error_number);
}

int ErrnoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrnoPayload);
  int error_number = 0;
  return payload && absl::SimpleAtoi(std::string(*payload), &error_number) ? error_number : 0;
}

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  if (status.ok()) return status;
  absl::Status told(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

absl::Status BothFailures(const absl::Status& first, const absl::Status& second) {
  if (second.ok()) return first;
  return WithMessage(first, absl::StrCat(first.message(), "; and ", second.message()));
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  return status.ok() ? status : WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

}  // namespace rekindle
