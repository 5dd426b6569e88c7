// Unix sockets of a job that have a name in the file system.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::criu {

struct NamedUnixSocket {
  std::string name;    // as it was bound
  std::string folder;  // where a relative name begins; empty: it is absolute
  // It was gone when the job was dumped. CRIU gives the socket its name for a moment only, and makes the
  // folders of `name` for as long; `folder` it needs.
  bool gone = false;
};

// Those of a files.img that a restore binds to their names again. Not the listener's ends of connections,
// which have its name as well, nor sockets of processes outside the job. DataLoss: it can't be read.
absl::StatusOr<std::vector<NamedUnixSocket>> NamedUnixSockets(absl::string_view files_content);

}  // namespace rekindle::criu
