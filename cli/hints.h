// What is wrong with a command line that CLI11 refused, and what its writer may have meant.
#pragma once

#include <string>
#include <vector>

#include "base/command_line.h"

namespace rekindle::cli {

// `app` has refused `words`; `all` has every command with its options. Names the first word that is no
// option, no command, or one too many, and says what may have been meant; empty: there is none, so something
// else is wrong.
std::string WrongWord(const CLI::App& app, const CLI::App& all, const std::vector<std::string>& words);

// The names with dashes of `app`'s own options, and the names of the commands below it.
std::vector<std::string> OptionsOf(const CLI::App& app);
std::vector<std::string> CommandsBelow(const CLI::App& app);

}  // namespace rekindle::cli
