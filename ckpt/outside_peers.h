// Whom a job is connected to that is not of it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace rekindle::ckpt {

// The Unix sockets of these processes whose other end none of them has: which descriptor leads to which
// process, by which name. A line each, the first few; empty: there are none, or the kernel does not tell.
// `caller`: who is told; of other users' processes nobody but root is told which they are. Looks at all
// processes of the machine.
std::string DescribeOutsidePeers(const std::vector<pid_t>& pids, uid_t caller);

}  // namespace rekindle::ckpt
