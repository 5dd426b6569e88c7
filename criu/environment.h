// What the machine offers to CRIU, checked one by one, for people who want to know before they rely on it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "criu/installation.h"

namespace rekindle::criu {

struct EnvironmentCheck {
  std::string name;  // stable and short: "criu", "cap_sys_admin", "userfaultfd", …
  bool ok = false;
  std::string detail;     // what was found, in a few words
  std::string cure;       // what to do when it is not ok; empty when nothing need be done
  bool required = false;  // without it no checkpoint and no restore works
};

// Runs every check (a few tens of milliseconds, most of them CRIU's own). `criu` is what FindCriu() returned;
// when it is an error, that error is the first check and CRIU is not run. Changes nothing on the machine.
// Thread-safe.
std::vector<EnvironmentCheck> CheckEnvironment(const absl::StatusOr<Installation>& criu);

}  // namespace rekindle::criu
