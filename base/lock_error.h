// What is said of a file lock that the kernel refuses.
#pragma once

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace rekindle {

// FailedPrecondition, with the cure, where the file system has no locks.
inline absl::Status LockError(int error_number, absl::string_view path) {
  const absl::Status status = ErrnoStatus(error_number, absl::StrCat("locking ", path));
  if (error_number != ENOLCK && error_number != ENOSYS && error_number != EOPNOTSUPP) return status;
  absl::Status refused = absl::FailedPreconditionError(absl::StrCat(
      status.message(),
      ". Its file system gives no locks: mount NFS as version 4, or version 3 with its lock service "
      "(rpcbind and rpc.statd run on both sides), Lustre with '-o flock'; or use a folder elsewhere"));
  status.ForEachPayload(
      [&refused](absl::string_view url, const absl::Cord& payload) { refused.SetPayload(url, payload); });
  return refused;
}

}  // namespace rekindle
