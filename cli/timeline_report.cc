#include "cli/timeline_report.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::cli {
namespace {

int64_t Length(const v1::Timeline& timeline) {
  int64_t longest = 0;
  for (const v1::Span& span : timeline.spans()) {
    if (span.thread() == "restore") longest = std::max<int64_t>(longest, span.duration_ns());
  }
  return longest;
}

}  // namespace

absl::StatusOr<TimelineReport> TimelineReport::Prepare(const Output& output, const TimelineOptions& options,
                                                       size_t expected) {
  std::optional<TraceFile> file;
  if (!options.trace_file.empty()) {
    RK_ASSIGN_OR_RETURN(TraceFile created, TraceFile::Create(options.trace_file));
    file.emplace(std::move(created));
  }
  return TimelineReport(output, options, expected, std::move(file));
}

void TimelineReport::Add(const v1::Timeline& timeline) {
  all_.push_back(timeline);
  if (all_.size() == expected_) Use();
}

void TimelineReport::Use() {
  if (used_ || all_.empty()) return;
  used_ = true;
  if (file_) {
    absl::Status written = file_->Write(ChromeTrace(all_));
    if (!written.ok()) output_.Warning(absl::StrCat("no timeline was written: ", written.message()));
  }
  if (!options_.explain) return;
  const auto slowest = std::max_element(all_.begin(), all_.end(),
                                        [](const auto& a, const auto& b) { return Length(a) < Length(b); });
  if (all_.size() > 1)
    output_.Note(absl::StrCat("The slowest of ", all_.size(), ", PID ", slowest->pid(), ":\n"));
  output_.Note(Explain(*slowest));
}

}  // namespace rekindle::cli
