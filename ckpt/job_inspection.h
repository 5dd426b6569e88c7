// Looking at a process tree before it is captured: may it be, can it be, and which of CRIU's options does it
// need? Everything comes from /proc; nothing is stopped or changed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace rekindle::ckpt {

struct ProcessInfo {
  pid_t pid = 0, parent = 0, session = 0;
  uid_t uid = 0;
  char state = '?';  // of /proc/PID/stat: R S D T t Z …
  bool kernel_thread = false;
  uint64_t start_ticks = 0;  // since boot: with the PID it names one process
  uint32_t threads = 0;
  uint64_t private_bytes = 0;  // resident anonymous and shared memory: about what a dump writes
  std::string command;         // command line, spaces between arguments; "[name]" for those without one
};

struct OpenDescriptor {
  pid_t pid = 0;
  int fd = -1;
  std::string target;  // what /proc/PID/fd/N points to
  bool writable = false;
};

// Descriptors 0, 1, 2 of the root.
struct StdioDescriptor {
  int fd = -1;
  std::string kind;      // "tty", "pipe", "file", "socket", "null", "other"
  std::string resource;  // CRIU's name where it can be replaced at restore
  bool outside = false;  // of a mount that the job's mount namespace does not have: a container's log
  std::string path;
  bool writable = false;
};

struct JobInspection {
  std::vector<ProcessInfo> processes;  // root first, parents before children
  std::string working_directory;       // of the root
  std::vector<StdioDescriptor> stdio;
  std::map<std::string, std::string> files_outside;  // outside_files.h
  std::vector<std::string> external_ttys;  // "tty[rdev:dev]" of terminals whose other side is outside the job
  bool session_outside = false;            // the root's session leader is not in the tree: CRIU's shell job
  uint32_t tcp_connections = 0;            // in any state, so also ones that are being made or closed
  bool listens_on_tcp = false;
  bool connected_to_itself = false;  // over TCP
  // CRIU's names of the two ends of the runtime hook's channel; empty: nothing is held by it. `hook_process`
  // holds it.
  std::vector<std::string> control_sockets;
  pid_t hook_process = 0;
  std::vector<pid_t> device_users;  // processes with /dev/nvidia* open
  std::vector<std::string> warnings;

  std::vector<pid_t> pids() const;
  uint64_t private_bytes() const;
  uint32_t threads() const;
};

// One process. NotFound when there is none.
absl::StatusOr<ProcessInfo> ReadProcess(pid_t pid);

// Is it a CRIU that dumps somebody?
bool IsCriuDump(pid_t pid);

// "boot id/pid/start": the same for as long as the process lives.
std::string JobId(const std::string& boot_id, const ProcessInfo& root);

// Looks at the tree of `pid` on behalf of `caller` (0: root, may see all) whose own process is `caller_pid`
// (0: unknown). Refuses what must not or cannot be captured, naming the reason and the cure:
// NotFound: there is no such process. InvalidArgument: PID 1, a kernel thread, Rekindle itself or a tree that
// holds it or the caller.
// FailedPrecondition: a zombie, a deleted working directory, an io_uring or userfaultfd descriptor, under a
// debugger. PermissionDenied: it belongs to somebody else. Unimplemented: this machine can't (another uid
// without CAP_SYS_RESOURCE).
absl::StatusOr<JobInspection> InspectJob(pid_t pid, uid_t caller, pid_t caller_pid,
                                         const std::vector<gid_t>& caller_groups = {});

// May `caller` (as above) have an image of what these processes are now? Those that have ended are nobody's.
// PermissionDenied: names the one.
absl::Status CheckMayHaveImageOf(absl::Span<const pid_t> pids, uid_t caller,
                                 const std::vector<gid_t>& caller_groups);

// What the processes have of /dev/nvidia*, "process 12: descriptor 5 /dev/nvidiactl, 2 mappings of
// /dev/nvidia0"; empty: nothing.
std::string OnNvidiaDevices(const std::vector<pid_t>& pids);

// Waits at most `patience` until no memory of it is served by a userfaultfd any more: CRIU would take pages
// that are not there yet for pages that were never touched. FailedPrecondition: some still is.
absl::Status WaitUntilMemoryIsThere(const JobInspection& job, absl::Duration patience);

}  // namespace rekindle::ckpt
