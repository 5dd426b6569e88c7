// Starting a command as a job that is easy to checkpoint: a session of its own, descriptors 0, 1 and 2 and no
// other, its output in a log. The command itself is the job's root process. All functions are thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"
#include "daemon/job_reaper.h"
#include "daemon/process_settings.h"

namespace rekindle::daemon {

// The user a job runs as, when it is not the service's own.
using RunAs = Owner;

struct LaunchOptions {
  std::vector<std::string> argv;  // argv[0] is looked up in the environment's PATH when it has no slash
  std::vector<std::string> environment;  // "K=V", complete
  std::string working_directory;         // absolute
  // Opened for appending as the job's user, and made if absent (0600); or, when `log_file` is valid, only its
  // name.
  std::string log;
  UniqueFd log_file;
  std::string standard_input;  // a file, opened as the job's user; empty: /dev/null
  std::optional<RunAs> run_as;
  std::vector<int> groups;  // open cgroup.procs files that it is put into
  UniqueFd mounts;          // a mount namespace that it runs in; none: the service's own
  UniqueFd network;         // the same of a network namespace
  // None: the service's own, with the limit of descriptors that it was started with.
  std::optional<ProcessSettings> settings;
  // Until it runs: opening what is named, and exec. Files that lie far away take a while.
  absl::Duration longest_start = absl::Seconds(30);
};

// Returns the PID of the command, a child of this process: reap it. NotFound: no such program, folder or log
// folder; PermissionDenied: the job's user may not use one of them; DeadlineExceeded: its input is a FIFO
// that nobody writes to.
// Warnings, where wanted, say which of the settings it could not be given. `before_command` is called when
// the process is there, ahead of its command, which it never begins after an error, or should this process
// end before that has returned: whoever comes next finds what was noted of it there.
absl::StatusOr<pid_t> LaunchJob(const LaunchOptions& options, std::vector<std::string>* warnings = nullptr,
                                const std::function<absl::Status(pid_t pid)>& before_command = nullptr);

// Gives a process of LaunchJob's, which leads a process group of its own, to the reaper: that ends the group
// with it. Where that can't be both are ended at once. `before_reaping` as of JobReaper::Adopt.
absl::StatusOr<std::shared_ptr<const JobEnd>> AdoptWithGroup(JobReaper& reaper, pid_t pid,
                                                             std::function<void()> before_reaping = nullptr);

// Calls `work` with the rights over files of another user, as WithFileRightsOf; nullopt: at once, with our
// own. An error: it was not called.
absl::Status DoAs(const std::optional<RunAs>& user, const std::function<void()>& work);

// Opens a file with the rights of another user; nullopt: with our own. For what a client names and the
// service opens: it never waits. FailedPrecondition: a FIFO that nobody reads.
absl::StatusOr<UniqueFd> OpenFileAs(const std::optional<RunAs>& user, const std::string& path, int flags,
                                    mode_t mode);

}  // namespace rekindle::daemon
