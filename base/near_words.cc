#include "base/near_words.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace rekindle {
namespace {

constexpr size_t kLongestWord = 64;         // of what anybody types by hand; bounds the work
constexpr size_t kShortestBeginning = 3;    // letters of which one can tell what they begin
constexpr size_t kShortestCarefulWord = 4;  // of two or three letters another command's name is one away

size_t MostSlips(size_t length) { return length < 6 ? 1 : 2; }

bool IsSwapped(absl::string_view a, absl::string_view b) {
  return a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[1] == b[0];
}

}  // namespace

size_t WordDistance(absl::string_view a, absl::string_view b, size_t most) {
  const size_t longer = std::max(a.size(), b.size()), shorter = std::min(a.size(), b.size());
  if (longer - shorter > most) return most + 1;
  // Rows of the table of all beginnings: of this letter of `a`, the one before, and the one before that.
  std::vector<size_t> row(b.size() + 1), before(b.size() + 1), earlier(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) before[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, changed});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], earlier[j - 2] + 1);
    }
    std::swap(earlier, before);
    std::swap(before, row);
  }
  return std::min(before[b.size()], most + 1);
}

std::string NearWord(absl::string_view typed, const std::vector<KnownWord>& known) {
  if (typed.empty() || typed.size() > kLongestWord) return "";
  const size_t most = MostSlips(typed.size());
  size_t nearest = most + 1;
  std::vector<const KnownWord*> found;
  for (const KnownWord& word : known) {
    if (typed.size() <= 2 || word.word.size() <= 2) {
      if (!IsSwapped(typed, word.word)) continue;
    }
    const size_t distance = WordDistance(typed, word.word, most);
    if (distance > nearest || distance > most) continue;
    if (word.careful && (distance > 1 || word.word.size() < kShortestCarefulWord)) continue;
    if (distance < nearest) found.clear();
    nearest = distance;
    found.push_back(&word);
  }
  if (found.empty() && typed.size() >= kShortestBeginning) {
    for (const KnownWord& word : known) {
      if (!word.careful && absl::StartsWith(word.word, typed)) found.push_back(&word);
    }
  }
  if (found.size() > 1) {
    found.erase(
        std::remove_if(found.begin(), found.end(), [](const KnownWord* word) { return word->careful; }),
        found.end());
  }
  return found.size() == 1 ? found.front()->word : "";
}

}  // namespace rekindle
