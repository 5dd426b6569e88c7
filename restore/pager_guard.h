// Holds the pager's descriptors when the pager has died (docs/pager.md, "Why the init keeps the
// descriptors").
//
// The userfaultfd of a forked child exists in the pager alone until the sandbox's init has its copy. A pager
// that was killed in between would leave the child zeros. So a small process shares the pager's table of
// descriptors: what the pager has at any moment, even what a system call is just giving it, is held until the
// sandboxes that it served have gone.
#pragma once

#include "absl/status/status.h"

namespace rekindle::restore {

// What the guard's process is called (/proc/PID/comm): its program is its caller's.
inline constexpr char kPagerGuardName[] = "rekindle-guard";

// Begins to guard the descriptors of the calling process, which must have one thread. When the process has
// ended, however it did, the guard closes all that it had but userfaultfds and keeper sockets
// (sandbox_protocol.h: packet sockets without a name), tells those who hold the other ends of the latter that
// nothing more will come, and ends when they have closed them and nobody has the memory behind the former.
absl::Status StartPagerGuard();

}  // namespace rekindle::restore
