#include "base/retention.h"

#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"

namespace rekindle {
namespace {

std::string Duration(int64_t ns) {
  struct Unit {
    int64_t seconds;
    const char* letter;
  };
  constexpr Unit kUnits[] = {{7 * 24 * 3600, "w"}, {24 * 3600, "d"}, {3600, "h"}, {60, "m"}};
  const int64_t seconds = ns / 1'000'000'000;
  for (const Unit& unit : kUnits) {
    if (seconds % unit.seconds == 0) return absl::StrCat(seconds / unit.seconds, unit.letter);
  }
  return absl::StrCat(seconds, "s");
}

std::string HourOf(absl::Time time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%d %H:00", time, zone);
}
std::string DayOf(absl::Time time, absl::TimeZone zone) { return absl::FormatTime("%Y-%m-%d", time, zone); }
std::string WeekOf(absl::Time time, absl::TimeZone zone) {
  const absl::CivilDay day = absl::ToCivilDay(time, zone);
  return absl::StrCat("from ", absl::FormatCivilTime(absl::PrevWeekday(day + 1, absl::Weekday::monday)));
}
std::string MonthOf(absl::Time time, absl::TimeZone zone) { return absl::FormatTime("%Y-%m", time, zone); }
std::string YearOf(absl::Time time, absl::TimeZone zone) { return absl::FormatTime("%Y", time, zone); }

struct Period {
  const char* name;
  uint64_t RetentionRules::*keep;
  std::string (*of)(absl::Time time, absl::TimeZone zone);
};
constexpr Period kPeriods[] = {{"hourly", &RetentionRules::keep_hourly, HourOf},
                               {"daily", &RetentionRules::keep_daily, DayOf},
                               {"weekly", &RetentionRules::keep_weekly, WeekOf},
                               {"monthly", &RetentionRules::keep_monthly, MonthOf},
                               {"yearly", &RetentionRules::keep_yearly, YearOf}};

}  // namespace

bool RetentionRules::empty() const {
  for (const Period& period : kPeriods) {
    if (this->*period.keep > 0) return false;
  }
  return keep_last == 0 && keep_within_ns == 0 && keep_labels.empty();
}

std::vector<std::vector<std::string>> ReasonsToKeep(absl::Span<const RetainedImage> images,
                                                    const RetentionRules& rules, int64_t now_unix_ns,
                                                    absl::TimeZone zone) {
  std::vector<std::vector<std::string>> all;
  all.reserve(images.size());
  uint64_t position = 0;
  std::set<std::string> seen[std::size(kPeriods)];  // of this group
  for (size_t i = 0; i < images.size(); ++i) {
    const RetainedImage& image = images[i];
    if (i > 0 && images[i - 1].group != image.group) {
      position = 0;
      for (std::set<std::string>& periods : seen) periods.clear();
    }
    std::vector<std::string>& reasons = all.emplace_back();
    if (++position <= rules.keep_last)
      reasons.push_back(absl::StrCat("last ", rules.keep_last, ": number ", position));
    // A clock that went back must not make an image look old: one of the future is kept.
    if (rules.keep_within_ns > 0 && image.there_since_unix_ns >= now_unix_ns - rules.keep_within_ns)
      reasons.push_back(absl::StrCat("within ", Duration(rules.keep_within_ns)));
    for (size_t p = 0; p < std::size(kPeriods); ++p) {
      const uint64_t keep = rules.*kPeriods[p].keep;
      if (seen[p].size() >= keep) continue;
      const std::string period = kPeriods[p].of(absl::FromUnixNanos(image.unix_ns), zone);
      // Where a clock went back, a period comes again, and has had its image.
      if (seen[p].insert(period).second)
        reasons.push_back(absl::StrCat(kPeriods[p].name, " ", keep, ": ", period));
    }
    for (const auto& [key, value] : rules.keep_labels) {
      if (image.labels == nullptr) continue;
      const auto label = image.labels->find(key);
      if (label != image.labels->end() && label->second == value)
        reasons.push_back(absl::StrCat("label ", key, "=", value));
    }
  }
  return all;
}

}  // namespace rekindle
