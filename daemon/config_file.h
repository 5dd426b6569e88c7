// The file of options of rekindled.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/command_line.h"

namespace rekindle::daemon {

// Is `text` what CLI11 reads as it was meant? It leaves out what it does not understand, or calls it by words
// of its own. InvalidArgument names the line. `flags`: options that may stand alone.
absl::Status CheckConfigText(absl::string_view text, const std::set<std::string>& flags);

// For CLI::App::config_formatter: CLI11's own, after CheckConfigText. `app` must outlive it.
std::shared_ptr<CLI::Config> CheckedConfig(const CLI::App& app);

}  // namespace rekindle::daemon
