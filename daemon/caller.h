// Who makes a call.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace rekindle::daemon {

// A value: cheap to copy, safe to share between threads.
struct Caller {
  enum class Kind {
    kSelf,    // the process that hosts the service
    kLocal,   // a process of this machine, known by the kernel's word (SO_PEERCRED)
    kRemote,  // a TLS client, known by its certificate
  };
  Kind kind = Kind::kSelf;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;              // supplementary
  pid_t pid = 0;                          // kLocal; 0: not known
  std::shared_ptr<const UniqueFd> pidfd;  // kLocal: of the process that connected; null when not known
  bool admin_certificate = false;         // kRemote: the certificate says "admin"
};

}  // namespace rekindle::daemon
