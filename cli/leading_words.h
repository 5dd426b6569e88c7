// The words of a command line before CLI11 sees them: what comes before the command's name, and the words of
// a job.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace rekindle::cli {

struct LeadingWords {
  std::vector<std::string> options;  // without their values
  size_t end = 0;  // where the first word is that is neither, or "--"; may be the words' end
};

// Of `words` from `begin` on.
LeadingWords LeadingOptions(const std::vector<std::string>& words, size_t begin = 0);

// "… run [options] [--] COMMAND…" in two: CLI11 must not look at the job's own options. The second part is
// empty for any other command.
std::pair<std::vector<std::string>, std::vector<std::string>> SplitJobCommand(
    const std::vector<std::string>& words);

// "rekindle help …" as other programs have it, in our words.
std::vector<std::string> InOurWords(std::vector<std::string> words);

}  // namespace rekindle::cli
