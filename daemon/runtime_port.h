// Where a custom runtime finds its Runtime API: a port of the loopback interface, for one user alone.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {

struct RuntimePort {
  UniqueFd listener;
  std::string address;  // "127.0.0.1:4711"
  // Whether the process at the other end of a connection is that user's. Everybody on the machine can
  // connect.
  std::function<bool(int connection)> may_connect;

  static absl::StatusOr<RuntimePort> Open(uid_t user);
};

}  // namespace rekindle::daemon
