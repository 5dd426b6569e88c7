// Threads in an uninterruptible wait (state D): for a file server or a disk, or for a vfork() child that has
// not begun its program. Nothing can stop such a thread, so CRIU waits for it while the rest of the job
// stands still. All functions are thread-safe; they read /proc and change nothing.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace rekindle::ckpt {

// Waits until every thread in the tree of `root` has come out of the uninterruptible wait in which it was
// found, if any was; waits of a moment are ordinary. FailedPrecondition: one is still in it after `patience`;
// says which and what in. Cancelled: `*cancel` (may be null) was set.
absl::Status AwaitInterruptible(pid_t root, absl::Duration patience, const std::atomic<bool>* cancel);

// "thread 12 (python3) of process 10 waits in read(), of /mnt/data/x (in the kernel: nfs_wait_bit_killable)",
// of the first such thread in the tree. Empty: there is none.
std::string DescribeUninterruptibleWait(pid_t root);

}  // namespace rekindle::ckpt
