// Finding a CRIU that works: $REKINDLE_CRIU, else the copy inside a relocatable bundle or an installation,
// else the private prefix that scripts/setup.sh makes, else the system's.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rekindle::criu {

struct Version {
  int major = 0, minor = 0, patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
  std::string ToString() const;
};

inline constexpr Version kOldestSupported{4, 2, 0};

struct Installation {
  // What comes before CRIU's own arguments: {"/usr/sbin/criu"}, or the loader of a private prefix with its
  // --library-path and the program.
  std::vector<std::string> command;
  Version version;
  std::string origin;  // for people: "system", "private prefix /opt/rekindle/criu", "REKINDLE_CRIU", "bundle"
};

// Search order: $REKINDLE_CRIU (a program or a prefix folder), ../lib/rekindle/criu and ../criu relative to
// our own executable (install and bundle), /opt/rekindle/criu, then `criu` in PATH, /usr/sbin and
// /usr/local/sbin. The first that answers with a version of at least kOldestSupported is taken. NotFound:
// none there. FailedPrecondition: only older ones (named). Both say that scripts/setup.sh is the cure. The
// answer is cached for the process by (path, mtime), so that a second call starts no program.
absl::StatusOr<Installation> FindCriu();

}  // namespace rekindle::criu
