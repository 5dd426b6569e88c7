// What the owner of a supervised job is told about it, once: things that are well until it dies or hangs.
#include <string>
#include <utility>

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
  std::set<std::string> found = reopened_.AppendedAgain();
  std::erase_if(found, [this](const std::string& path) { return reopened_told_.contains(path); });
  if (!found.empty()) {
    pid_t pid;
    {
      absl::MutexLock lock(&mutex_);
      pid = record_.pid();
    }
    for (const auto& [path, other] : WrittenByOthers(found, ProcessTree(pid), NamesOfFiles::kTrusted))
      found.erase(path);
    if (reopened_untold_.empty()) reopened_since_ = now;
    reopened_untold_.merge(found);
  }
  // Those that it comes to a moment later are told with them.
  if (reopened_untold_.empty() || now < reopened_since_ + kReopenedAreGatheredSeconds) return;
  std::vector<std::string> names(reopened_untold_.begin(), reopened_untold_.end());
  reopened_told_.merge(reopened_untold_);
  reopened_untold_.clear();
  const size_t all = names.size();
  if (all > kMostReopenedNamed) names.resize(kMostReopenedNamed);
  // Who has appended nobody tells of one that is not open.
  notices_.Warn(
      absl::StrCat(absl::StrJoin(names, ", "),
                   all > names.size() ? absl::StrCat(" and ", all - names.size(), " more") : "",
                   all == 1 ? " was" : " were",
                   " appended to, perhaps by it: if so, what it had written there since the image that it "
                   "went back to is there twice, because it does not keep ",
                   all == 1 ? "that file" : "these files", " open, so that images do not know of ",
                   all == 1 ? "it" : "them", ". Started with --track-path ", names.front(),
                   all == 1 ? "" : " (for each, or a pattern)", ", it has ", all == 1 ? "it" : "them",
                   " cut back when it goes back"));
}

}  // namespace rekindle::daemon
