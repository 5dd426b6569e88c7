// Users as people name them.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace rekindle::daemon {

// As this machine's databases know him.
struct User {
  std::string name;
  uid_t uid = 0;
  gid_t group = 0;
};
// Nothing: they know no user of this number. An error: they can't be asked.
absl::StatusOr<std::optional<User>> FindUser(uid_t uid);

// Empty: this machine knows no user of this number.
std::string UserName(uid_t uid);

// Of a name, or of a number, which need not be a user's here. NotFound: no user has this name.
absl::StatusOr<uid_t> UserOfText(const std::string& text);

}  // namespace rekindle::daemon
