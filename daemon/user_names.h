// Users as people name them.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace rekindle::daemon {

// Empty: this machine knows no user of this number.
std::string UserName(uid_t uid);

// Of a name, or of a number, which need not be a user's here. NotFound: no user has this name.
absl::StatusOr<uid_t> UserOfText(const std::string& text);

}  // namespace rekindle::daemon
