// A command that has further ones under it, such as `rekindle gpu`.
#pragma once

#include <string>

#include "base/command_line.h"

namespace rekindle::cli {

// A command with examples below its help; options of `above` may follow its name, too.
CLI::App* AddCommand(CLI::App& above, const std::string& name, const std::string& description,
                     const std::string& examples);

// One under which a further one must be named.
CLI::App* AddCommandGroup(CLI::App& app, const std::string& name, const std::string& description,
                          const std::string& examples);

}  // namespace rekindle::cli
