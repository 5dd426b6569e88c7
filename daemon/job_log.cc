#include "daemon/job_log.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/process_stat.h"
#include "daemon/caller.h"
#include "daemon/node.h"
#include "daemon/reopened_files.h"
#include "daemon/supervised_record.h"

namespace rekindle::daemon {
namespace {

struct JobWithLog {
  std::string log;
  uid_t owner = 0;
  bool supervised = false;
};

// By their names: those that have not ended, whether they run at the moment or wait to be brought back.
std::map<std::string, JobWithLog> JobsWithLogs(Node& node) {
  std::map<std::string, JobWithLog> jobs;
  for (const JobRecord& job : node.jobs().List().value_or(std::vector<JobRecord>())) {
    if (!job.log.empty() && JobRegistry::Lives(job)) jobs[job.name] = {job.log, job.owner, false};
  }
  const std::string directory = SupervisedDirectory(node.options().store);
  for (const std::string& name : ListSupervisedRecords(directory).value_or(std::vector<std::string>())) {
    const absl::StatusOr<v1::SupervisedJobRecord> record = ReadSupervisedRecord(directory, name);
    if (!record.ok() || record->ended() || IsOtherMachine(record->machine())) continue;
    jobs[name] = {record->log(), record->uid(), true};
  }
  return jobs;
}

void AddWithAncestors(pid_t process, std::vector<pid_t>* pids) {
  constexpr int kMost = 100;  // numbers may be given anew meanwhile
  for (int i = 0; i < kMost && process > 0; ++i) {
    pids->push_back(process);
    const absl::StatusOr<ProcessStat> stat = ReadProcessStat(process);
    process = stat.ok() ? stat->parent : 0;
  }
}

bool IsRegular(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

}  // namespace

absl::Status CheckLogIsOwn(Node& node, const Caller& caller, const std::string& log, bool supervised,
                           const std::string& except, std::vector<std::string>* warnings) {
  struct stat file;
  if (log.empty() || ::stat(log.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return absl::OkStatus();
  for (const auto& [name, job] : JobsWithLogs(node)) {
    if (name == except) continue;
    // A record may name whatever its owner likes.
    if (job.owner != caller.uid && job.owner != file.st_uid) continue;
    if (job.log != log && (job.owner != caller.uid || !IsSameFile(job.log, log))) continue;
    const std::string whose =
        node.policy().MayUse(caller, job.owner) ? absl::StrCat("job '", name, "'") : "another user's job";
    if (supervised || job.supervised) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the log ", log, " is that of ", whose,
          ", which has not ended: a job that is brought back has its log cut to what it was when the image "
          "was "
          "taken, and what the other one wrote would be lost with that. Give it another --log, or none: then "
          "it gets one of its own"));
    }
    warnings->push_back(
        absl::StrCat("the log ", log, " is that of ", whose,
                     " as well: 'rekindle logs' shows what both write, and a roll-back of one "
                     "cuts off what the other wrote"));
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> WarnOfOthersCut(
    const google::protobuf::RepeatedPtrField<v1::FileRollback>& files, std::vector<pid_t> job, pid_t caller) {
  std::map<std::string, const v1::FileRollback*> cut;
  std::set<std::string> paths;
  for (const v1::FileRollback& file : files) {
    if (file.action() != v1::FileRollback::TRUNCATED || file.discarded_bytes() == 0) continue;
    cut[file.path()] = &file;
    paths.insert(file.path());
  }
  std::map<std::string, std::string> warnings;
  if (paths.empty()) return warnings;
  for (const pid_t first : {::getpid(), caller}) AddWithAncestors(first, &job);
  for (const auto& [path, pid] : WrittenByOthers(paths, job, NamesOfFiles::kChecked)) {
    std::string name = ReadFile(absl::StrCat("/proc/", pid, "/comm")).value_or("");
    absl::StripTrailingAsciiWhitespace(&name);
    const std::string& kept = cut[path]->tail_copy();
    warnings.emplace(
        path,
        absl::StrCat(path, " was cut to what it was when the image was taken, and process ", pid,
                     name.empty() ? "" : absl::StrCat(" (", name, ")"),
                     " writes to it, too: what that one had written since ",
                     kept.empty() ? "is gone" : absl::StrCat("is now in ", kept, " alone"),
                     ". Let each job write to a file of its own, or leave this one out with --ignore-path"));
  }
  return warnings;
}

std::string WarnOfFullLog(const std::string& log, uid_t user) {
  struct statvfs fs;
  if (log.empty() || !IsRegular(log) || ::statvfs(log.c_str(), &fs) != 0 || fs.f_blocks == 0) return "";
  if ((user == 0 ? fs.f_bfree : fs.f_bavail) > 0) return "";
  return absl::StrCat(
      "the file system of its log ", log,
      " is full, so that its output is lost and it may fail when it writes: make room there, or "
      "start it with a --log elsewhere");
}

std::string LogOfRestored(pid_t root, const std::string& log, const v1::JobManifest& manifest,
                          std::vector<std::string>* warnings) {
  const v1::StdioSlot* output = nullptr;
  for (const v1::StdioSlot& slot : manifest.stdio()) {
    if (slot.fd() == 0 || slot.kind() != "file") continue;
    if (slot.path() == log) return log;
    if (output == nullptr) output = &slot;
  }
  if (log.empty() || output == nullptr) return log;
  // Moved or removed, as by who rotates logs; else it has come to write elsewhere by its own doing.
  const bool moved = absl::StartsWith(output->path(), absl::StrCat(log, ".")) ||
                     absl::StartsWith(output->path(), absl::StrCat(log, " "));
  if (!moved && PathExists(log)) return log;
  const std::string link = absl::StrCat("/proc/", root, "/fd/", output->fd());
  const std::string path = ReadLink(link).value_or("");
  if (!path.empty() && IsSameFile(link, path)) return path;
  if (!path.empty()) {
    warnings->push_back(absl::StrCat("its output goes to a file that has no name any more, since its log ",
                                     log,
                                     " was removed: 'rekindle logs' can't show it, and it is lost when the "
                                     "job ends. `rekindle restore --log "
                                     "FILE` gives it another"));
  }
  return "";
}

}  // namespace rekindle::daemon
