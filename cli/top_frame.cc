#include "cli/top_frame.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"
#include "cli/table.h"

namespace rekindle::cli {
namespace {

using Style = TopLine::Style;

constexpr char kNothing[] = "-";
constexpr char kFailedPhase[] = "failed";  // a phase
constexpr size_t kGap = 2;                 // columns between two of the table
constexpr size_t kLeastName = 12;          // columns for a job's name, before others are left out for it
constexpr size_t kMostTroubles = 2, kMostDeaths = 3, kMostDeathsWithoutLimit = 10;

std::string Clip(const std::string& text, size_t columns) {
  if (columns == 0) return Shown(text, text.size());
  return DisplayWidth(text) <= columns ? Shown(text, columns) : Shown(text, columns - 1);
}

// In one unit, since it changes every second: "41 s", "12 min", "5 h", "3 d".
std::string Roughly(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", std::max(seconds, 0.0));
  if (seconds < 2 * 3600) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 2 * 86400) return absl::StrFormat("%.0f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

std::string RateText(double per_second) {
  if (per_second <= 0) return kNothing;
  if (per_second >= 100) return absl::StrFormat("%.0f/s", per_second);
  if (per_second >= 0.1) return absl::StrFormat("%.3g/s", per_second);
  if (per_second * 60 >= 0.1) return absl::StrFormat("%.3g/min", per_second * 60);
  return absl::StrFormat("%.3g/h", per_second * 3600);
}

std::string LeftText(const v1::JobProgress& progress) {
  if (progress.total() <= progress.step() || progress.steps_per_second() <= 0) return kNothing;
  return Roughly(static_cast<double>(progress.total() - progress.step()) / progress.steps_per_second());
}

std::string StateText(const v1::Job& job) {
  return job.supervised().phase().empty() ? job.state() : job.supervised().phase();
}

std::string OverheadText(double frozen, double ran) {
  return ran <= 0 ? kNothing : absl::StrFormat("%.2f %%", 100 * frozen / ran);
}

using Cell = std::function<std::string(const v1::Job&, int64_t now)>;

// What only a supervised job has.
Cell Supervised(std::function<std::string(const v1::SupervisedState&, int64_t now)> text) {
  return [text = std::move(text)](const v1::Job& job, int64_t now) {
    return job.has_supervised() ? text(job.supervised(), now) : std::string(kNothing);
  };
}

struct Column {
  const char* title;
  int importance;  // the least important one goes first
  bool to_the_left;
  Cell cell;
};

const std::vector<Column>& Columns() {
  static const auto* columns = new std::vector<Column>{
      {"NAME", 13, true, [](const v1::Job& job, int64_t) { return job.name(); }},
      {"PID", 3, false,
       [](const v1::Job& job, int64_t) { return job.pid() > 0 ? absl::StrCat(job.pid()) : kNothing; }},
      {"STATE", 12, true, [](const v1::Job& job, int64_t) { return StateText(job); }},
      {"STEP", 11, false, [](const v1::Job& job, int64_t) { return StepText(job); }},
      {"RATE", 6, false,
       [](const v1::Job& job, int64_t) { return RateText(job.progress().steps_per_second()); }},
      {"LEFT", 1, false, [](const v1::Job& job, int64_t) { return LeftText(job.progress()); }},
      {"EVERY", 2, false, Supervised([](const v1::SupervisedState& state, int64_t) {
         return state.interval_seconds() > 0 ? Roughly(state.interval_seconds()) : std::string(kNothing);
       })},
      {"LAST IMAGE", 9, false, Supervised([](const v1::SupervisedState& state, int64_t now) {
         return state.last_image_unix_ns() > 0
                    ? Roughly(static_cast<double>(now - state.last_image_unix_ns()) / 1e9)
                    : std::string(kNothing);
       })},
      {"COPIED", 8, false, CopiedText},
      {"FREEZE", 4, false, Supervised([](const v1::SupervisedState& state, int64_t) {
         return state.last_freeze_seconds() > 0 ? FormatSeconds(state.last_freeze_seconds()) : kNothing;
       })},
      {"OVERHEAD", 7, false, Supervised([](const v1::SupervisedState& state, int64_t) {
         return OverheadText(state.total_freeze_seconds(), state.run_seconds());
       })},
      {"RESTARTS", 10, false, [](const v1::Job& job, int64_t) { return RestartsText(job); }},
      {"MEMORY", 5, false,
       [](const v1::Job& job, int64_t) {
         return job.resident_bytes() > 0 ? FormatBytes(job.resident_bytes()) : kNothing;
       }},
  };
  return *columns;
}

// The line of titles, and one for each job.
std::vector<std::string> LayOutJobs(const TopFigures& figures, size_t columns) {
  const std::vector<Column>& all = Columns();
  const int jobs = figures.jobs.jobs_size();
  std::vector<std::vector<std::string>> cells(all.size());
  std::vector<size_t> widths(all.size());
  std::vector<size_t> by_importance;
  for (size_t i = 0; i < all.size(); ++i) {
    widths[i] = DisplayWidth(all[i].title);
    bool tells = false;
    for (const v1::Job& job : figures.jobs.jobs()) {
      cells[i].push_back(Clip(all[i].cell(job, figures.now_unix_ns), 0));
      widths[i] = std::max(widths[i], DisplayWidth(cells[i].back()));
      tells = tells || cells[i].back() != kNothing;
    }
    if (tells) by_importance.push_back(i);
  }
  std::sort(by_importance.begin(), by_importance.end(),
            [&](size_t a, size_t b) { return all[a].importance > all[b].importance; });

  // The name comes first; it gives way to others, down to a part of it, and takes what they leave.
  std::vector<size_t> shown = {0};
  const size_t name_width = widths[0];
  size_t used = std::min(name_width, kLeastName);
  for (size_t i : by_importance) {
    if (i == 0) continue;
    if (columns != 0 && used + kGap + widths[i] > columns) break;
    used += kGap + widths[i];
    shown.push_back(i);
  }
  std::sort(shown.begin(), shown.end());
  const size_t others = used - std::min(name_width, kLeastName);
  widths[0] = columns == 0 ? name_width : std::min(name_width, columns - std::min(columns - 1, others));

  std::vector<std::string> lines;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t i : shown) {
      const std::string cell = i == 0 ? Clip(cell_of(i), widths[0]) : cell_of(i);
      const std::string padding(widths[i] - std::min(widths[i], DisplayWidth(cell)), ' ');
      if (i != shown.front()) line.append(kGap, ' ');
      line += all[i].to_the_left ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(columns == 0 ? line : Clip(line, columns));
  };
  add_line([&](size_t i) { return std::string(all[i].title); });
  for (int job = 0; job < jobs; ++job) add_line([&](size_t i) { return cells[i][static_cast<size_t>(job)]; });
  return lines;
}

std::string Summary(const TopFigures& figures) {
  uint64_t supervised = 0, restarts = 0;
  double frozen = 0, ran = 0;
  for (const v1::Job& job : figures.jobs.jobs()) {
    if (!job.has_supervised()) continue;
    ++supervised;
    restarts += job.supervised().restarts();
    frozen += job.supervised().total_freeze_seconds();
    ran += job.supervised().run_seconds();
  }
  std::string text =
      absl::StrCat("rekindle top  ", figures.time_of_day, "  jobs: ", figures.jobs.jobs_size());
  if (supervised == 0) return text;
  absl::StrAppend(&text, ", supervised: ", supervised, ", restarts: ", restarts);
  if (ran > 0) absl::StrAppend(&text, ", frozen: ", OverheadText(frozen, ran));
  return text;
}

std::string Images(const TopFigures& figures) {
  std::string text = absl::StrCat("Images: ", figures.images, ", ", FormatBytes(figures.stored_bytes),
                                  " stored of ", FormatBytes(figures.logical_bytes));
  if (figures.free_bytes) absl::StrAppend(&text, ", ", FormatBytes(*figures.free_bytes), " free");
  return text;
}

std::vector<std::string> TroublesOf(const v1::Job& job) {
  std::vector<std::string> troubles;
  const v1::SupervisedState& state = job.supervised();
  for (const std::string& what : {state.report(), state.last_error()}) {
    if (!what.empty()) troubles.push_back(absl::StrCat(job.name(), ": ", what));
  }
  for (const std::string& what : state.warnings()) troubles.push_back(absl::StrCat(job.name(), ": ", what));
  return troubles;
}

std::vector<std::string> Troubles(const TopFigures& figures) {
  std::vector<std::string> troubles;
  for (const v1::Job& job : figures.jobs.jobs()) {
    for (std::string& trouble : TroublesOf(job)) troubles.push_back(std::move(trouble));
    for (std::string& trouble : CopyTroubles(job)) troubles.push_back(std::move(trouble));
  }
  return troubles;
}

// Newest first: each begins with its time, in a form that can be compared.
std::vector<std::string> Deaths(const TopFigures& figures) {
  std::vector<std::pair<std::string, std::string>> deaths;
  for (const v1::Job& job : figures.jobs.jobs()) {
    for (const std::string& death : job.supervised().deaths()) deaths.emplace_back(death, job.name());
  }
  std::stable_sort(deaths.begin(), deaths.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> lines;
  for (const auto& [death, name] : deaths) lines.push_back(absl::StrCat(name, ": ", death));
  return lines;
}

}  // namespace

std::string StepText(const v1::Job& job) {
  if (!job.has_progress()) return kNothing;
  const v1::JobProgress& progress = job.progress();
  return progress.total() == 0 ? absl::StrCat(progress.step())
                               : absl::StrCat(progress.step(), "/", progress.total());
}

std::string CopiedText(const v1::Job& job, int64_t now_unix_ns) {
  int64_t last = 0;
  bool troubled = false;
  for (const v1::CopyState& copy : job.copies()) {
    last = std::max(last, copy.copied_unix_ns());
    troubled = troubled || !copy.trouble().empty();
  }
  return absl::StrCat(last > 0 ? Roughly(static_cast<double>(now_unix_ns - last) / 1e9) : kNothing,
                      troubled ? " !" : "");
}

std::vector<std::string> CopyTroubles(const v1::Job& job) {
  std::vector<std::string> troubles;
  for (const v1::CopyState& copy : job.copies()) {
    if (!copy.trouble().empty()) troubles.push_back(absl::StrCat(job.name(), ": ", copy.trouble()));
  }
  return troubles;
}

std::string RestartsText(const v1::Job& job) {
  if (!job.has_supervised()) return kNothing;
  const v1::SupervisedState& state = job.supervised();
  // Those of the machine cost none.
  const uint32_t free =
      state.has_attempts() && state.restarts() > state.attempts() ? state.restarts() - state.attempts() : 0;
  return absl::StrCat(state.restarts() - free, "/", state.policy().restarts(),
                      free > 0 ? absl::StrCat("+", free) : "");
}

std::vector<std::string> FailureLines(const v1::Job& job) {
  const v1::SupervisedState& state = job.supervised();
  if (state.phase() != kFailedPhase) return {};
  std::vector<std::string> lines = TroublesOf(job);
  const int deaths = std::min(state.deaths_size(), static_cast<int>(kMostDeaths));
  for (int i = 0; i < deaths; ++i) lines.push_back(absl::StrCat(job.name(), ": ", state.deaths(i)));
  if (state.lost_seconds() > 0) {
    lines.push_back(
        absl::StrCat(job.name(), ": ", FormatSeconds(state.lost_seconds()), " of its work were lost"));
  }
  return lines;
}

std::vector<TopLine> LayOutTop(const TopFigures& figures, const TopSize& size) {
  const std::vector<std::string> jobs = LayOutJobs(figures, size.columns);
  std::vector<std::string> troubles = Troubles(figures);
  std::vector<std::string> deaths = Deaths(figures);
  std::vector<TopLine> lines;
  const auto add = [&](const std::string& text, Style style = Style::kPlain) {
    lines.push_back({Clip(text, size.columns), style});
  };

  add(Summary(figures));
  if (!figures.trouble.empty()) add(figures.trouble, Style::kTrouble);
  add("");

  size_t below = 2 + std::min(troubles.size(), kMostTroubles);
  if (!deaths.empty()) below += 2 + std::min(deaths.size(), kMostDeaths);
  const size_t count = jobs.size() - 1;
  size_t shown = count;
  if (size.rows != 0) {
    const size_t taken = lines.size() + 1 + below;
    const size_t room = size.rows > taken ? size.rows - taken : 1;
    if (count > room) shown = std::max<size_t>(room, 2) - 1;
  }
  if (count == 0) {
    add("No jobs.");
  } else {
    add(jobs[0], Style::kTitle);
    for (size_t i = 1; i <= shown; ++i) add(jobs[i]);
    if (shown < count) add(absl::StrCat("… and ", count - shown, " more"));
  }

  add("");
  troubles.resize(size.rows == 0 ? troubles.size() : std::min(troubles.size(), kMostTroubles));
  for (const std::string& trouble : troubles) add(trouble, Style::kTrouble);
  add(Images(figures));
  if (!deaths.empty()) {
    add("");
    add("Deaths lately", Style::kTitle);
    size_t room = kMostDeathsWithoutLimit;
    if (size.rows != 0) room = size.rows > lines.size() ? size.rows - lines.size() : 0;
    deaths.resize(std::min(deaths.size(), room));
    for (const std::string& death : deaths) add(death);
  }
  if (size.rows != 0 && lines.size() > size.rows) lines.resize(size.rows);
  return lines;
}

}  // namespace rekindle::cli
