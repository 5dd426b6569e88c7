// Who may do what: the rules of docs/daemon.md, in one place. Thread-safe: immutable.
#pragma once

#include <sys/types.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/caller.h"

namespace rekindle::daemon {

class AccessPolicy {
 public:
  // `service_uid`: the user the service runs as. `admin_group`: its members may do all.
  AccessPolicy(uid_t service_uid, std::optional<gid_t> admin_group)
      : service_uid_(service_uid), admin_group_(admin_group) {}

  // The process itself, root, the service's own user, members of the group, and "admin" certificates.
  bool IsAdmin(const Caller& caller) const;

  // Seeing, restoring, invoking, removing: the owner's and the administrators' right.
  bool MayUse(const Caller& caller, uid_t owner) const { return IsAdmin(caller) || caller.uid == owner; }
  // PermissionDenied otherwise; `verb` and `image` are for the message: "restore", "web:1".
  absl::Status MayUseImage(const Caller& caller, uid_t image_owner, absl::string_view verb,
                           absl::string_view image) const;
  absl::Status MayUseJob(const Caller& caller, uid_t job_owner, absl::string_view verb, pid_t pid) const;
  absl::Status MayUseFunction(const Caller& caller, uid_t function_owner, absl::string_view verb,
                              absl::string_view function) const;
  // What concerns everybody's images, or files that the service would touch with its own rights.
  absl::Status MayAdminister(const Caller& caller, absl::string_view what) const;

 private:
  absl::Status CheckUse(const Caller& caller, uid_t owner, absl::string_view verb,
                        absl::string_view what) const;

  const uid_t service_uid_;
  const std::optional<gid_t> admin_group_;
};

}  // namespace rekindle::daemon
