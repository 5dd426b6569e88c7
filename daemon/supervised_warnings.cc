// What the owner of a supervised job is told about it, once: things that are well until it dies or hangs.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/proc_text.h"
#include "base/process_stat.h"
#include "base/utf8.h"
#include "daemon/job_file.h"
#include "daemon/job_strays.h"
#include "daemon/supervised_job.h"

namespace rekindle::daemon {
namespace {

constexpr double kLookForStraysSeconds = 60;
constexpr double kLookAtLogSeconds = 60;  // its file system may be far away
constexpr size_t kMostWarnings = 20;
constexpr double kReopenedAreGatheredSeconds = 5;
constexpr size_t kMostReopenedNamed = 5;

}  // namespace

std::string SupervisedJob::WithoutNumbers(absl::string_view message) {
  std::string words(message);
  std::erase_if(words, [](char c) { return absl::ascii_isxdigit(c); });
  return words;
}

void SupervisedJob::Tell(const v1::JobEvent& event, LogLevel level, const std::string& text) {
  const bool told = events_.Send(event);
  if (node_.options().daemon || !told) Log(level, text);
}

void SupervisedJob::Warn(const std::string& warning) {
  const std::string text = ToUtf8(warning);
  {
    absl::MutexLock lock(&mutex_);
    if (warnings_.size() == kMostWarnings || std::count(warnings_.begin(), warnings_.end(), text) != 0)
      return;
    warnings_.push_back(text);
  }
  v1::JobEvent event;
  event.mutable_warning()->set_warning(text);
  Tell(event, LogLevel::kWarning, absl::StrCat("job '", name_, "': ", text));
}

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
    Warn(absl::StrCat("it was started where the runtime folder is ", variable, ", and here it is ",
                      node_.options().runtime_directory,
                      ": what it may report through the hook (progress, moments for images) is not heard. "
                      "That takes a daemon with --runtime-dir ",
                      variable));
  }
}

void SupervisedJob::TellOfCopies(const std::string& place, const std::string& trouble) {
  v1::JobEvent event;
  event.mutable_copies()->set_place(ToUtf8(place));
  event.mutable_copies()->set_trouble(ToUtf8(trouble));
  {
    absl::MutexLock lock(&mutex_);
    copies_trouble_ = event.copies();
  }
  events_.Send(event);
}

std::optional<v1::JobEvent> SupervisedJob::TroubleOfCopies() const {
  absl::MutexLock lock(&mutex_);
  if (copies_trouble_.trouble().empty()) return std::nullopt;
  v1::JobEvent event;
  *event.mutable_copies() = copies_trouble_;
  return event;
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
  Warn(DescribeStrays(strays, /*are_ended_with_it=*/true));
}

void SupervisedJob::TellOfFullLog() {
  const std::string hint = ToUtf8(HintAtFullLog());
  if (hint == full_log_told_) return;
  if (!full_log_told_.empty()) {  // there is room again
    absl::MutexLock lock(&mutex_);
    std::erase(warnings_, full_log_told_);
  }
  full_log_told_ = hint;
  if (!hint.empty()) Warn(hint);
}

void SupervisedJob::LookForFullLog(double now, uint64_t log_bytes) {
  if (now < next_look_at_log_) return;
  next_look_at_log_ = now + kLookAtLogSeconds;
  const bool grew = std::exchange(log_bytes_, log_bytes) != log_bytes;
  if (!grew || !full_log_told_.empty()) TellOfFullLog();
}

void SupervisedJob::TellOfUnseenHangs(double now) {
  if (unseen_hangs_told_ || !progress_.MayHangUnseen(now)) return;
  unseen_hangs_told_ = true;
  Warn(
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
  Warn(absl::StrCat("what it appends to ", absl::StrJoin(names, ", "),
                    all > names.size() ? absl::StrCat(" and ", all - names.size(), " more") : "",
                    " is there twice from the image on that it went back to: it does not keep ",
                    all == 1 ? "that file" : "these files", " open, so that images do not know of ",
                    all == 1 ? "it" : "them", ". Started with --track-path ", names.front(),
                    all == 1 ? "" : " (for each, or a pattern)", ", it has ", all == 1 ? "it" : "them",
                    " cut back when it goes back"));
}

void SupervisedJob::TellOfImageWarnings(const v1::CheckpointResult& result) {
  for (const std::string& warning : result.warnings()) {
    if (image_warnings_told_.size() < kMostWarnings &&
        image_warnings_told_.insert(WithoutNumbers(warning)).second)
      Warn(absl::StrCat("its images: ", warning));
  }
}

}  // namespace rekindle::daemon
