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

absl::Status AccessPolicy::CheckUse(const Caller& caller, uid_t owner, absl::string_view verb,
                                    absl::string_view what) const {
  if (MayUse(caller, owner)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(what, ": uid ", caller.uid, " may not ", verb, " it, it belongs to uid ", owner,
                   ": ask its owner, or do it as root or a member of the daemon's --group"));
}

absl::Status AccessPolicy::MayUseImage(const Caller& caller, uid_t image_owner, absl::string_view verb,
                                       absl::string_view image) const {
  return CheckUse(caller, image_owner, verb, absl::StrCat("image '", image, "'"));
}

absl::Status AccessPolicy::MayUseJob(const Caller& caller, uid_t job_owner, absl::string_view verb,
                                     pid_t pid) const {
  return CheckUse(caller, job_owner, verb, absl::StrCat("process ", pid));
}

absl::Status AccessPolicy::MayUseFunction(const Caller& caller, uid_t function_owner, absl::string_view verb,
                                          absl::string_view function) const {
  return CheckUse(caller, function_owner, verb, absl::StrCat("function '", function, "'"));
}

absl::Status AccessPolicy::MayAdminister(const Caller& caller, absl::string_view what) const {
  if (IsAdmin(caller)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("uid ", caller.uid, " may not ", what,
                   ": it concerns the whole node; do it as root or as a member of the daemon's --group"));
}

}  // namespace rekindle::daemon
