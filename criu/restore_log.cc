#include "criu/restore_log.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace rekindle::criu {
namespace {

constexpr int64_t kNanosPerMicrosecond = 1000;

struct Line {
  int64_t at_us = 0;  // since the log's begin
  int pid = 0;        // 0: CRIU itself
  bool restorer = false;
  absl::string_view text;
};

// "(00.066033) pie: 11151: Switched to the restorer 11151"
std::optional<Line> ParseLine(absl::string_view text) {
  Line line;
  const size_t dot = text.find('.'), close = text.find(')');
  if (!absl::ConsumePrefix(&text, "(") || dot == text.npos || close == text.npos || close < dot) {
    return std::nullopt;
  }
  int64_t seconds = 0, microseconds = 0;
  if (close - dot - 1 != 6 || !absl::SimpleAtoi(text.substr(0, dot - 1), &seconds) ||
      !absl::SimpleAtoi(text.substr(dot, close - dot - 1), &microseconds)) {
    return std::nullopt;
  }
  line.at_us = seconds * 1'000'000 + microseconds;
  text = absl::StripLeadingAsciiWhitespace(text.substr(close));
  line.restorer = absl::ConsumePrefix(&text, "pie: ");
  text = absl::StripLeadingAsciiWhitespace(text);
  const size_t colon = text.find(':');
  if (colon != text.npos && absl::SimpleAtoi(text.substr(0, colon), &line.pid)) text.remove_prefix(colon + 1);
  line.text = absl::StripLeadingAsciiWhitespace(text);
  return line;
}

// A stage begins with the first line that begins so, after those before it.
struct Milestone {
  const char* line;  // '#': a digit
  bool restorer;
  const char* stage;
};
// What CRIU does in its own process. While it waits for the tasks they do their part.
constexpr Milestone kOwnMilestones[] = {
    {"", false, "kernel features"},
    {"Reading image tree", false, "image tree"},
    {"Running pre-restore scripts", false, "pre-restore call"},
    {"Forking task with ", false, "tasks"},
    {"Running post-restore scripts", false, "post-restore call"},
    {"net: Unlock network", false, "letting go"},
    {"Running pre-resume scripts", false, "resuming"},
};
constexpr char kOwnEnd[] = "Restore finished successfully";
constexpr Milestone kTaskMilestones[] = {
    {"", false, "namespaces and images"},
    {"Found ", false, "mappings"},
    {"pr#", false, "pages"},
    {"Restore on-core sigactions", false, "children"},
    {"Restoring resources", false, "descriptors"},
    {"Restore via sigreturn", false, "restorer's plan"},
    {"Switched to the restorer", true, "placing memory"},
    {"vdso: Parsing at", true, "threads and the rest"},
};
constexpr char kTaskEnd[] = ": Restored";

bool Matches(absl::string_view text, const char* pattern) {
  for (size_t i = 0; pattern[i] != '\0'; ++i) {
    if (i >= text.size()) return false;
    if (pattern[i] == '#' ? !absl::ascii_isdigit(static_cast<unsigned char>(text[i])) : pattern[i] != text[i])
      return false;
  }
  return true;
}

// The stages of one process of CRIU's.
class Stages {
 public:
  Stages(std::string thread, absl::Span<const Milestone> milestones)
      : thread_(std::move(thread)), milestones_(milestones) {}

  void Add(const Line& line) {
    if (ended_) return;
    last_us_ = line.at_us;
    for (size_t i = next_; i < milestones_.size(); ++i) {
      if (milestones_[i].restorer != line.restorer && *milestones_[i].line != '\0') continue;
      if (!Matches(line.text, milestones_[i].line)) continue;
      begun_.push_back({milestones_[i].stage, line.at_us, {}});
      next_ = i + 1;
      break;
    }
    uint64_t number = 0;
    absl::string_view text = line.text;
    if (absl::ConsumePrefix(&text, "Found ") && absl::StrContains(text, "VMAs")) {
      if (absl::SimpleAtoi(text.substr(0, text.find(' ')), &number)) Note("mappings", number);
    } else if (absl::ConsumePrefix(&text, "nr_restored_pages:")) {
      if (absl::SimpleAtoi(text, &number)) Note("pages", number);
    } else if (absl::ConsumePrefix(&text, "nr_lazy:")) {
      if (absl::SimpleAtoi(text, &number)) Note("lazy_pages", number);
    }
    ended_ = line.restorer ? absl::EndsWith(line.text, kTaskEnd) : absl::StartsWith(line.text, kOwnEnd);
  }

  void AppendTo(Timeline* timeline, int64_t zero_ns) const {
    for (size_t i = 0; i < begun_.size(); ++i) {
      const int64_t end = i + 1 < begun_.size() ? begun_[i + 1].at_us : last_us_;
      Span span;
      span.process = "criu";
      span.thread = thread_;
      span.name = begun_[i].name;
      span.begin_ns = zero_ns + begun_[i].at_us * kNanosPerMicrosecond;
      span.duration_ns = (end - begun_[i].at_us) * kNanosPerMicrosecond;
      span.numbers = begun_[i].numbers;
      timeline->push_back(std::move(span));
    }
  }

 private:
  struct Begun {
    const char* name;
    int64_t at_us;
    std::map<std::string, int64_t> numbers;
  };
  void Note(const char* name, uint64_t number) {
    if (!begun_.empty()) begun_.back().numbers[name] = static_cast<int64_t>(number);
  }

  const std::string thread_;
  const absl::Span<const Milestone> milestones_;
  size_t next_ = 0;
  int64_t last_us_ = 0;
  bool ended_ = false;
  std::vector<Begun> begun_;
};

}  // namespace

Timeline RestoreStages(absl::string_view log, int64_t requested_ns, const std::vector<StageReached>& stages) {
  Stages own("restore", kOwnMilestones);
  std::map<int, Stages> tasks;
  // We read of a stage some time after its line was written, so the earliest is the nearest.
  int64_t zero_ns = std::numeric_limits<int64_t>::max();
  for (absl::string_view text : absl::StrSplit(log, '\n')) {
    const std::optional<Line> line = ParseLine(text);
    if (!line) continue;
    if (line->pid != 0) {
      tasks.try_emplace(line->pid, absl::StrCat("task ", line->pid), kTaskMilestones)
          .first->second.Add(*line);
      continue;
    }
    own.Add(*line);
    for (const StageReached& stage : stages) {
      if (line->text != absl::StrCat("Running ", stage.name, " scripts")) continue;
      zero_ns = std::min(zero_ns, stage.at_ns - line->at_us * kNanosPerMicrosecond);
    }
  }
  if (zero_ns == std::numeric_limits<int64_t>::max()) zero_ns = requested_ns;
  zero_ns = std::max(zero_ns, requested_ns);
  Timeline timeline;
  own.AppendTo(&timeline, zero_ns);
  for (const auto& [pid, task] : tasks) task.AppendTo(&timeline, zero_ns);
  return timeline;
}

}  // namespace rekindle::criu
