#include "restore/file_cut.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_beginning.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using Report = v1::FileRollback;

// One that is written to all the time is cut off some time: what comes in the last microseconds is lost.
constexpr int kTriesToCatchUp = 8;

absl::StatusOr<uint64_t> SizeOf(const FileAction& action) {
  struct stat info;
  if (::fstat(action.file.get(), &info) != 0) return ErrnoStatus(errno, "looking at it");
  return static_cast<uint64_t>(info.st_size);
}

// What is there now is not what was to be cut off.
absl::Status LeaveOrRefuse(absl::string_view what, bool may_go_on, FileAction& action) {
  if (!may_go_on) {
    return absl::AbortedError(absl::StrCat(
        what,
        " while the job was being restored, which can't go on with it; it is as it was found: try "
        "again, and find out who else writes it"));
  }
  action.report.set_action(Report::LEFT);
  action.report.set_why(absl::StrCat(what, " while the job was being restored"));
  return absl::OkStatus();
}

// Of one that is to be cut off. It may become LEFT.
absl::Status CatchUp(const WithRights& with_rights, FileAction& action) {
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(action));
  const v1::WrittenFile& file = action.recorded;
  if (now < file.size()) {
    return LeaveOrRefuse(absl::StrCat("it became shorter (", now, " bytes, it had ", file.size(), ")"),
                         action.may_be_shorter, action);
  }
  if (file.size() > 0 && file.ending() != 0) {
    RK_ASSIGN_OR_RETURN(const uint64_t ending, FileEnding(action.file.get(), file.size()));
    if (ending != file.ending()) return LeaveOrRefuse("it was written anew", action.may_be_anew, action);
  }
  return action.keep_tail ? CatchUpTailOf(with_rights, action) : absl::OkStatus();
}

}  // namespace

absl::Status AboutFile(const absl::Status& status, const FileAction& action) {
  if (status.ok()) return status;
  absl::string_view cure =
      absl::IsResourceExhausted(status) ? "; free some room, or leave it out with --ignore-path" : "";
  return WithMessage(status,
                     absl::StrCat("rolling back ", action.recorded.path(), ": ", status.message(), cure));
}

absl::Status Halfway(const absl::Status& status, const FileAction& action) {
  return Annotate(AboutFile(status, action), "some files may have been rolled back, others not; try again");
}

absl::Status KeepTailOf(const WithRights& with_rights, FileAction& action) {
  RK_ASSIGN_OR_RETURN(const uint64_t end, SizeOf(action));
  const uint64_t begin = action.discarded_at;
  const std::string& planned = action.report.tail_copy();
  const std::string folder = planned.substr(0, planned.rfind('/') + 1);
  const std::string name = planned.substr(folder.size());
  auto kept = KeepTail(action.file.get(), begin, end, action.folder.get(), name, with_rights);
  const bool ours = absl::IsPermissionDenied(kept.status());
  if (ours) {
    // The folder of logs need not be the user's. It is the very one in which the job's file was found, so
    // that nobody gets a file into a folder where he has none.
    kept =
        KeepTail(action.file.get(), begin, end, action.folder.get(), name, [](const auto& work) { work(); });
  }
  RK_RETURN_IF_ERROR(kept.status());
  action.report.set_tail_copy(folder + kept->name);
  action.report.set_discarded_bytes(kept->end > begin ? kept->end - begin : 0);
  action.tails.push_back({*std::move(kept), ours});
  return absl::OkStatus();
}

absl::Status CatchUpTailOf(const WithRights& with_rights, FileAction& action) {
  const auto keep = [&]() -> absl::Status {
    RK_RETURN_IF_ERROR(KeepTailOf(with_rights, action));
    return SyncTail(action.tails.back().kept);
  };
  if (action.tails.empty()) return keep();
  RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(action));
  KeptTail& kept = action.tails.back().kept;
  RK_ASSIGN_OR_RETURN(const bool same, AddToTail(action.file.get(), now, &kept));
  // What it had before is in the first copy alone.
  if (!same) return keep();
  action.report.set_discarded_bytes(kept.end - action.discarded_at);
  return absl::OkStatus();
}

void RemoveTails(const WithRights& with_rights, FileAction& action) {
  for (const FileAction::Tail& tail : action.tails) {
    auto remove = [&] { (void)::unlinkat(action.folder.get(), tail.kept.name.c_str(), 0); };
    tail.with_our_rights ? remove() : with_rights(remove);
  }
  action.tails.clear();
}

absl::Status CutOneOff(const WithRights& with_rights, FileAction& action) {
  const uint64_t size = action.recorded.size();
  for (int tries = 1;; ++tries) {
    RK_RETURN_IF_ERROR(CatchUp(with_rights, action));
    if (action.report.action() != Report::TRUNCATED) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(const uint64_t now, SizeOf(action));
    if (now < size) continue;
    if (action.keep_tail && now > action.tails.back().kept.end && tries < kTriesToCatchUp) continue;
    action.report.set_discarded_bytes(now - size);
    if (::ftruncate(action.file.get(), static_cast<off_t>(size)) != 0)
      return ErrnoStatus(errno, "cutting it off");
    action.cut_off = true;
    action.tails.clear();
    return absl::OkStatus();
  }
}

// Those of a database are put back together.
bool IsCutLast(const FileAction& action) {
  return action.report.action() == Report::TRUNCATED && action.database.empty();
}

absl::Status CatchUpWithFiles(const WithRights& with_rights, std::vector<FileAction>* plan) {
  for (FileAction& action : *plan) {
    if (!IsCutLast(action) || action.cut_off) continue;
    RK_RETURN_IF_ERROR(AboutFile(CatchUp(with_rights, action), action));
  }
  return absl::OkStatus();
}

absl::Status CutFilesOff(const WithRights& with_rights, std::vector<FileAction>* plan) {
  RK_RETURN_IF_ERROR(CatchUpWithFiles(with_rights, plan));
  for (FileAction& action : *plan) {
    if (!IsCutLast(action) || action.cut_off) continue;
    // Others are without their tails by now, so it is too late to refuse.
    action.may_be_shorter = action.may_be_anew = true;
    RK_RETURN_IF_ERROR(Halfway(CutOneOff(with_rights, action), action));
  }
  return absl::OkStatus();
}

void RemoveUselessTails(const WithRights& with_rights, std::vector<FileAction>* plan) {
  for (FileAction& action : *plan) {
    if (IsCutLast(action)) RemoveTails(with_rights, action);
  }
}

}  // namespace rekindle::restore
