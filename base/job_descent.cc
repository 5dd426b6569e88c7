#include "base/job_descent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rekindle {
namespace {

constexpr size_t kMostAncestors = 64;
constexpr size_t kMostStretches = 16;

struct Ancestor {
  absl::string_view start;
  uint64_t number;
};

bool IsStart(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// At most kMostAncestors.
std::vector<Ancestor> Split(absl::string_view ancestors) {
  std::vector<Ancestor> split;
  for (const absl::string_view word : absl::StrSplit(ancestors, ',', absl::SkipEmpty())) {
    const size_t colon = word.find(':');
    Ancestor ancestor{word.substr(0, colon), 0};
    if (colon == absl::string_view::npos || !IsStart(ancestor.start) ||
        !absl::SimpleAtoi(word.substr(colon + 1), &ancestor.number) || split.size() == kMostAncestors)
      break;
    split.push_back(ancestor);
  }
  return split;
}

}  // namespace

std::string AncestorsOfNext(absl::string_view start, uint64_t number, absl::string_view ancestors) {
  if (!IsStart(start)) return "";
  std::string next = absl::StrCat(start, ":", number);
  std::vector<Ancestor> before = Split(ancestors);
  if (before.size() == kMostAncestors) before.pop_back();
  for (const Ancestor& ancestor : before) absl::StrAppend(&next, ",", ancestor.start, ":", ancestor.number);
  return next;
}

StartsBefore ParseAncestors(absl::string_view ancestors) {
  StartsBefore before;
  for (const Ancestor& ancestor : Split(ancestors))
    before.emplace(std::string(ancestor.start), ancestor.number);
  return before;
}

bool IsInPast(absl::string_view ancestors, absl::string_view start, uint64_t number) {
  const std::vector<Ancestor> before = Split(ancestors);
  const auto of_start = std::find_if(before.begin(), before.end(),
                                     [start](const Ancestor& ancestor) { return ancestor.start == start; });
  return of_start != before.end() && number <= of_start->number;
}

void AddStarts(const StartsBefore& more, StartsBefore* known) {
  for (const auto& [start, number] : more) {
    uint64_t& last = known->try_emplace(start, number).first->second;
    last = std::max(last, number);
  }
}

std::string SeenOfNext(StartsBefore known, absl::string_view ancestors, absl::string_view inherited) {
  AddStarts(ParseAncestors(inherited), &known);
  const StartsBefore past = ParseAncestors(ancestors);
  std::vector<Ancestor> seen;
  for (const auto& [start, number] : known) {
    const auto before = past.find(start);
    if (IsStart(start) && (before == past.end() || number > before->second)) seen.push_back({start, number});
  }
  // The moments of submission as numbers.
  std::sort(seen.begin(), seen.end(), [](const Ancestor& a, const Ancestor& b) {
    return std::pair(a.start.size(), a.start) > std::pair(b.start.size(), b.start);
  });
  if (seen.size() > kMostAncestors) seen.erase(seen.begin() + kMostAncestors, seen.end());
  std::string text;
  for (const Ancestor& one : seen)
    absl::StrAppend(&text, text.empty() ? "" : ",", one.start, ":", one.number);
  return text;
}

std::vector<SoundStretch> ParseSound(absl::string_view sound) {
  std::vector<SoundStretch> stretches;
  for (const absl::string_view word : absl::StrSplit(sound, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> of = absl::StrSplit(word, absl::MaxSplits(':', 1)),
                                                          ends = absl::StrSplit(of.second,
                                                                                absl::MaxSplits('-', 1));
    SoundStretch stretch{std::string(of.first)};
    if (!IsStart(of.first) || !absl::SimpleAtoi(ends.first, &stretch.first) ||
        !absl::SimpleAtoi(ends.second, &stretch.last) || stretch.first > stretch.last ||
        stretches.size() == kMostStretches)
      break;
    stretches.push_back(std::move(stretch));
  }
  return stretches;
}

std::string SoundText(const std::vector<SoundStretch>& stretches) {
  std::string text;
  for (size_t i = 0; i < std::min(stretches.size(), kMostStretches); ++i) {
    const SoundStretch& stretch = stretches[i];
    absl::StrAppend(&text, i == 0 ? "" : ",", stretch.start, ":", stretch.first, "-", stretch.last);
  }
  return text;
}

std::optional<size_t> NewestSound(const std::vector<SoundStretch>& stretches,
                                  const std::vector<NumberInStart>& images) {
  for (const SoundStretch& stretch : stretches) {
    std::optional<size_t> newest;
    for (size_t i = 0; i < images.size(); ++i) {
      if (stretch.Has(images[i]) && (!newest || images[i].number > images[*newest].number)) newest = i;
    }
    if (newest) return newest;
  }
  return std::nullopt;
}

void CutOffAfter(absl::string_view start, uint64_t number, std::vector<SoundStretch>* stretches) {
  for (SoundStretch& stretch : *stretches) {
    if (stretch.start == start) stretch.last = std::min(stretch.last, number);
  }
  std::erase_if(*stretches, [](const SoundStretch& stretch) { return stretch.first > stretch.last; });
}

}  // namespace rekindle
