// What an error was made of, for programs that decide by it: its message is for people, and changes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// Payloads that a status carries; those of a daemon's calls reach its clients (daemon/told_by_daemon.h).
inline constexpr char kErrnoPayload[] = "rekindle/errno";  // a number (ErrnoOf)
inline constexpr char kCausePayload[] = "rekindle/cause";  // one of the words below

// There is no store: at a path where nothing is, in a folder that is there and empty, or where a file system
// is not mounted that /etc/fstab or a symbolic link tells of.
inline constexpr char kCauseNoStore[] = "no-store";
inline constexpr char kCauseEmptyFolder[] = "no-store-in-folder";
inline constexpr char kCauseNotMounted[] = "store-not-mounted";

// Empty: none is known.
inline absl::Status WithCause(absl::Status status, absl::string_view cause) {
  if (!cause.empty()) status.SetPayload(kCausePayload, absl::Cord(cause));
  return status;
}

// 0: it was made of none.
inline absl::Status WithErrno(absl::Status status, int error_number) {
  if (error_number != 0) status.SetPayload(kErrnoPayload, absl::Cord(absl::StrCat(error_number)));
  return status;
}

// Empty: none was said.
inline std::string CauseOf(const absl::Status& status) {
  return std::string(status.GetPayload(kCausePayload).value_or(absl::Cord()));
}

inline bool IsOfNoStore(const absl::Status& status) {
  const std::string cause = CauseOf(status);
  return cause == kCauseNoStore || cause == kCauseEmptyFolder || cause == kCauseNotMounted;
}

}  // namespace rekindle
