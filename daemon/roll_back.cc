#include "daemon/roll_back.h"

#include <unistd.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/user_groups.h"

namespace rekindle::daemon {
namespace {

constexpr gid_t kNoGroup = 65534;  // of a user that this machine does not know

}  // namespace

std::set<std::string> RollbackOfFiles::cut_last() const {
  std::set<std::string> paths;
  for (const restore::FileAction& action : plan_) {
    if (restore::IsCutLast(action)) paths.insert(action.recorded.path());
  }
  return paths;
}

absl::Status RollbackOfFiles::CutOff() {
  absl::Status done;
  auto with_rights = [this, &done](const std::function<void()>& work) { done.Update(DoAs(user_, work)); };
  RK_RETURN_IF_ERROR(restore::CutFilesOff(with_rights, &plan_));
  RK_RETURN_IF_ERROR(done);
  tells_of_cut_ = true;
  return absl::OkStatus();
}

absl::Status RollbackOfFiles::CatchUp() {
  absl::Status done;
  auto with_rights = [this, &done](const std::function<void()>& work) { done.Update(DoAs(user_, work)); };
  RK_RETURN_IF_ERROR(restore::CatchUpWithFiles(with_rights, &plan_));
  return done;
}

void RollbackOfFiles::GiveUp() {
  restore::RemoveUselessTails([this](const std::function<void()>& work) { DoAs(user_, work).IgnoreError(); },
                              &plan_);
}

std::vector<v1::FileRollback> RollbackOfFiles::Reports() const {
  std::vector<v1::FileRollback> files;
  for (const restore::FileAction& action : plan_) {
    if (restore::IsCutLast(action) && !action.cut_off && !tells_of_cut_) continue;
    v1::FileRollback& report = files.emplace_back(action.report);
    report.set_path(ToUtf8(report.path()));
    report.set_why(ToUtf8(report.why()));
    report.set_tail_copy(ToUtf8(report.tail_copy()));
  }
  return files;
}

absl::StatusOr<RollbackOfFiles> RollBackFiles(const store::ImageReader& image,
                                              const v1::JobManifest& manifest, const v1::Rollback& rollback,
                                              const std::optional<RunAs>& user, restore::SeenFrom place,
                                              const std::set<std::string>& replaced) {
  RK_RETURN_IF_ERROR(DoAs(user, [] {}));
  absl::Status done;  // what was not done says nothing of a file
  auto with_rights = [&user, &done](const std::function<void()>& work) { done.Update(DoAs(user, work)); };
  RK_ASSIGN_OR_RETURN(std::vector<restore::FileAction> plan,
                      restore::PlanRollback(manifest, image, rollback, with_rights, place, replaced));
  RK_RETURN_IF_ERROR(done);
  if (!rollback.dry_run()) {
    RK_RETURN_IF_ERROR(restore::CheckPlan(plan));
    RK_RETURN_IF_ERROR(restore::PutFilesBack(image, with_rights, &plan));
    if (!done.ok()) {
      restore::RemoveUselessTails(with_rights, &plan);
      return done;
    }
  }
  return RollbackOfFiles(std::move(plan), user, rollback.dry_run());
}

std::optional<RunAs> UserOfJob(const v1::JobManifest& manifest) {
  if (::geteuid() != 0 || manifest.uid() == 0) return std::nullopt;
  RunAs user;
  user.uid = manifest.uid();
  user.gid = kNoGroup;
  if (std::optional<UserGroups> known = GroupsOfUser(user.uid)) {
    user.gid = known->group;
    user.groups = std::move(known->groups);
  }
  return user;
}

}  // namespace rekindle::daemon
