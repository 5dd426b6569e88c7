#include "cli/leading_words.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "cli/supervision_arguments.h"

namespace rekindle::cli {
namespace {

// Options that may come before a command, or that `run` may have before the job's, which begins at the first
// word that is none of them.
constexpr absl::string_view kOptionsWithValue[] = {"--name",   "--log",      "--store",  "--host",
                                                   "--tls-ca", "--tls-cert", "--tls-key"};

bool TakesValue(absl::string_view word) {
  const std::vector<std::string>& supervision = SupervisionArguments::OptionsWithValue();
  return std::find(std::begin(kOptionsWithValue), std::end(kOptionsWithValue), word) !=
             std::end(kOptionsWithValue) ||
         std::find(supervision.begin(), supervision.end(), word) != supervision.end();
}

}  // namespace

LeadingWords LeadingOptions(const std::vector<std::string>& words, size_t begin) {
  LeadingWords leading;
  size_t at = begin;
  while (at < words.size() && absl::StartsWith(words[at], "-") && words[at] != "--") {
    leading.options.push_back(words[at]);
    at += TakesValue(words[at]) ? 2 : 1;
  }
  leading.end = std::min(at, words.size());
  return leading;
}

std::pair<std::vector<std::string>, std::vector<std::string>> SplitJobCommand(
    const std::vector<std::string>& words) {
  const size_t command = LeadingOptions(words).end;
  if (command == words.size() || words[command] != "run") return {words, {}};
  auto middle = words.begin() + static_cast<std::ptrdiff_t>(LeadingOptions(words, command + 1).end);
  std::vector<std::string> ours(words.begin(), middle);
  if (middle != words.end() && *middle == "--") ++middle;
  return {ours, {middle, words.end()}};
}

std::vector<std::string> InOurWords(std::vector<std::string> words) {
  const LeadingWords leading = LeadingOptions(words);
  const bool asks_version =
      std::find(leading.options.begin(), leading.options.end(), "--version") != leading.options.end();
  if (!asks_version && leading.end < words.size() && words[leading.end] == "help") {
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(leading.end));
    words.push_back("--help");
  }
  return words;
}

}  // namespace rekindle::cli
