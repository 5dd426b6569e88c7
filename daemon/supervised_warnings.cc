// What the owner of a supervised job is told about it, once: things that are well until it dies or hangs.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/proc_text.h"
#include "base/process_stat.h"
#include "daemon/job_file.h"
#include "daemon/job_strays.h"
#include "daemon/supervised_job.h"

namespace rekindle::daemon {
namespace {

constexpr double kLookForStraysSeconds = 60;
constexpr double kLookAtLogSeconds = 60;  // its file system may be far away
constexpr double kReopenedAreGatheredSeconds = 5;
constexpr size_t kMostReopenedNamed = 5;

std::string SomeOfReopened(const std::vector<std::string>& paths) {
  const size_t named = std::min(paths.size(), kMostReopenedNamed);
  return absl::StrCat(absl::StrJoin(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                      paths.size() > named ? absl::StrCat(" and ", paths.size() - named, " more") : "");
}

// Who has appended nobody tells of one that is not open.
std::string WarnOfReopened(const std::vector<std::string>& paths) {
  const bool one = paths.size() == 1;
  return absl::StrCat(SomeOfReopened(paths), one ? " was" : " were",
                      " appended to, perhaps by it: if so, what it had written there since the image that it "
                      "went back to is there twice, because it does not keep ",
                      one ? "that file" : "these files", " open, so that images do not know of ",
                      one ? "it" : "them", ". Started with --track-path ", paths.front(),
                      one ? "" : " (for each, or a pattern)", ", it has ", one ? "it" : "them",
                      " cut back when it goes back");
}

// Whether the job keeps them open does not matter then, nor would --track-path have helped.
std::string WarnOfNewer(const std::vector<std::string>& paths, const std::string& job) {
  const bool one = paths.size() == 1;
  return absl::StrCat(
      SomeOfReopened(paths), one ? " was" : " were",
      " made after the image that it went back to, and appended to again, perhaps by it: if so, what it had "
      "written there is there twice. Remove one of the two parts. Images from now on know of ",
      one ? "it" : "them", " as long as it keeps ", one ? "it" : "them", " open (else --track-path ",
      paths.front(),
      "). So that this does not happen: an image just after it has opened such a file, by `rekindle ckpt ",
      job, " -t NAME:TAG`, or by checkpoint_here() in the job");
}

}  // namespace

void SupervisedJob::TellOfOtherFolder() {
  pid_t pid;
  {
    absl::MutexLock lock(&mutex_);
    pid = record_.pid();
  }
  const std::string environment = EnvironmentOf(pid);
  for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
    if (!absl::ConsumePrefix(&variable, absl::StrCat(REKINDLE_JOB_FILE_VARIABLE, "="))) continue;
    if (variable == JobFilePath() ||
        !absl::ConsumeSuffix(&variable, absl::StrCat("/" REKINDLE_JOB_FILE_FOLDER "/", mark_)))
      continue;
    notices_.Warn(
        absl::StrCat("it was started where the runtime folder is ", variable, ", and here it is ",
                     node_.options().runtime_directory,
                     ": what it may report through the hook (progress, moments for images) is not heard. "
                     "That takes a daemon with --runtime-dir ",
                     variable));
  }
}

Strays SupervisedJob::LookForStrays() {
  const double now = MonotonicSeconds();
  if (strays_told_ || now < next_look_for_strays_) return {};
  next_look_for_strays_ = now + kLookForStraysSeconds;
  return StraysAmong(*ProcessTable::Recent());
}

Strays SupervisedJob::StraysAmong(const ProcessTable& processes) const {
  const MarkUses::Use uses = node_.mark_uses().End(mark_, name_);
  const absl::StatusOr<std::vector<JobRecord>> others = OtherJobs();
  if (!others.ok()) return {};
  pid_t pid;
  {
    absl::MutexLock lock(&mutex_);
    pid = record_.pid();
  }
  return FindStrays(Traits(others, static_cast<bool>(uses)), pid, processes);
}

void SupervisedJob::TellOfStrays(const Strays& before) {
  if (before.empty()) return;
  const Strays strays = InBoth(before, StraysAmong(ProcessTable()));
  if (strays.empty()) return;
  strays_told_ = true;
  notices_.Warn(DescribeStrays(strays, /*are_ended_with_it=*/true));
}

void SupervisedJob::LookForFullLog(double now, uint64_t log_bytes) {
  if (now < next_look_at_log_) return;
  next_look_at_log_ = now + kLookAtLogSeconds;
  const bool grew = std::exchange(log_bytes_, log_bytes) != log_bytes;
  if (!grew || notices_.told_of_full_log()) notices_.LogIsFull(HintAtFullLog());
}

void SupervisedJob::TellOfUnseenHangs(double now) {
  if (unseen_hangs_told_ || !progress_.MayHangUnseen(now)) return;
  unseen_hangs_told_ = true;
  notices_.Warn(
      "it reports no progress, so that --hang goes by its CPU time, input and output: while it waits "
      "actively, as "
      "in a collective that never ends, or some thread of it ticks, it is not found to hang. Have it call "
      "rekindle.progress(), or give --hang-sign output where it prints something more often than that");
}

void SupervisedJob::TellOfReopenedFiles(double now) {
  ReopenedFiles::Appended found = reopened_.AppendedAgain();
  std::erase_if(found, [this](const auto& file) { return reopened_told_.contains(file.first); });
  if (!found.empty()) {
    pid_t pid;
    {
      absl::MutexLock lock(&mutex_);
      pid = record_.pid();
    }
    std::set<std::string> paths;
    for (const auto& [path, is_newer] : found) paths.insert(path);
    for (const auto& [path, other] : WrittenByOthers(paths, ProcessTree(pid), NamesOfFiles::kTrusted))
      found.erase(path);
    if (reopened_untold_.empty()) reopened_since_ = now;
    reopened_untold_.merge(found);
  }
  // Those that it comes to a moment later are told with them.
  if (reopened_untold_.empty() || now < reopened_since_ + kReopenedAreGatheredSeconds) return;
  std::vector<std::string> not_open, newer;
  for (const auto& [path, is_newer] : reopened_untold_) {
    (is_newer ? newer : not_open).push_back(path);
    reopened_told_.insert(path);
  }
  reopened_untold_.clear();
  if (!not_open.empty()) notices_.Warn(WarnOfReopened(not_open));
  if (!newer.empty()) notices_.Warn(WarnOfNewer(newer, name_));
}

}  // namespace rekindle::daemon
