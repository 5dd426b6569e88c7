// Terminals that belong to nobody in the job, taken out of CRIU's images.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace rekindle::criu {

// Names of what takes their place: resources of RestoreOptions::inherit_fd.
inline constexpr char kInsteadOfTerminalInput[] = "rekindle-instead-of-terminal-input";
inline constexpr char kInsteadOfTerminalOutput[] = "rekindle-instead-of-terminal-output";

// `images` are files.img, tty-info.img and every fdinfo-N.img by name. Returns those that change when each
// terminal whose other side is outside the job (`--external tty[…]`) becomes two plain files with the names
// above: the first for descriptors 0, the second for all others. CRIU gives a job only a terminal for a
// terminal, and only one for all descriptors that share it. Empty when there is none. DataLoss for images
// that can't be read.
absl::StatusOr<std::map<std::string, std::string>> WithoutTerminals(
    const std::map<std::string, std::string>& images);

}  // namespace rekindle::criu
