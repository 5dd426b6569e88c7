// Helpers around absl::Status. Below the CLI every fallible function returns absl::Status or
// absl::StatusOr<T>; a message names the object, what was tried, why it failed, and what to do.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// A status for a failed system call: "WHAT: No space left on device". The code follows from `error_number`
// (ENOENT -> NotFound, EACCES/EPERM -> PermissionDenied, ENOSPC/EDQUOT/EMFILE -> ResourceExhausted, …).
absl::Status ErrnoStatus(int error_number, absl::string_view what);

// Of which error number it was made, by ErrnoStatus, also where more was said of it since (WithMessage,
// Annotate). 0: of none.
int ErrnoOf(const absl::Status& status);

// The same status, with what else it carries, but for its message; OK stays OK.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// Two things that went wrong: the first, which is not OK, with what it carries, and "; and SECOND" behind its
// message. A second one that is OK changes nothing.
absl::Status BothFailures(const absl::Status& first, const absl::Status& second);

// The same status with "CONTEXT: " put before its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace rekindle

#define RK_STATUS_CONCAT_INNER(a, b) a##b
#define RK_STATUS_CONCAT(a, b) RK_STATUS_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` is not OK.
#define RK_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status rk_status_ = (expr); !rk_status_.ok()) return rk_status_; \
  } while (0)

// RK_ASSIGN_OR_RETURN(auto x, StatusOrExpression());
#define RK_ASSIGN_OR_RETURN(lhs, expr) \
  RK_ASSIGN_OR_RETURN_IMPL(RK_STATUS_CONCAT(rk_statusor_, __LINE__), lhs, expr)
#define RK_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
