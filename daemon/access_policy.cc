#include "daemon/access_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rekindle::daemon {

bool AccessPolicy::IsAdmin(const Caller& caller) const {
  switch (caller.kind) {
    case Caller::Kind::kSelf:
      return true;
    case Caller::Kind::kRemote:
      return caller.admin_certificate;
    case Caller::Kind::kLocal:
      break;
  }
  if (caller.uid == 0 || caller.uid == service_uid_) return true;
  if (!admin_group_) return false;
  return caller.gid == *admin_group_ ||
         std::find(caller.groups.begin(), caller.groups.end(), *admin_group_) != caller.groups.end();
}

absl::Status AccessPolicy::MayUseImage(const Caller& caller, uid_t image_owner, absl::string_view verb,
                                       absl::string_view image) const {
  if (IsAdmin(caller) || caller.uid == image_owner) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("image '", image, "': uid ", caller.uid, " may not ", verb, " it, it belongs to uid ",
                   image_owner, ": ask its owner, or do it as root or a member of the daemon's --group"));
}

absl::Status AccessPolicy::MayUseJob(const Caller& caller, uid_t job_owner, absl::string_view verb,
                                     pid_t pid) const {
  if (IsAdmin(caller) || caller.uid == job_owner) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("process ", pid, ": uid ", caller.uid, " may not ", verb, " it, it belongs to uid ",
                   job_owner, ": do it as that user, as root or as a member of the daemon's --group"));
}

absl::Status AccessPolicy::MayAdminister(const Caller& caller, absl::string_view what) const {
  if (IsAdmin(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("uid ", caller.uid, " may not ", what,
                   ": it concerns the whole node; do it as root or as a member of the daemon's --group"));
}

}  // namespace rekindle::daemon
