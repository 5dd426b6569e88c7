// What a capture keeps outside its own process while it runs, so that whatever starts after a crash can put
// things right: a work folder with a journal of the job's processes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "ckpt/job_inspection.h"

namespace rekindle::ckpt {

// In the runtime folder: the longest path of a socket of a capture's. Sockets have at most 107 bytes.
inline constexpr absl::string_view kLongestSocket = "/capture-XXXXXX/streamer-capture.sock";

// Not thread-safe.
class CaptureSession {
 public:
  // Claims the tree of `job` and makes a work folder with its journal in `runtime_directory`. Aborted when
  // another capture of the same root is under way on this machine.
  static absl::StatusOr<CaptureSession> Begin(const std::string& runtime_directory, const JobInspection& job);
  CaptureSession(CaptureSession&&) = default;
  CaptureSession& operator=(CaptureSession&&) = default;

  const std::string& work_directory() const { return work_directory_.path(); }
  // For criu::DumpOptions; the journal has it too.
  const std::string& run() const { return run_; }

  // The folder and the CRIU log in it outlive this object (after a failure).
  std::string KeepLogs();

 private:
  CaptureSession(std::string run, TemporaryDirectory work_directory, UniqueFd process, UniqueFd number,
                 UniqueFd journal)
      : run_(std::move(run)),
        work_directory_(std::move(work_directory)),
        process_(std::move(process)),
        number_(std::move(number)),
        journal_(std::move(journal)) {}

  std::string run_;
  TemporaryDirectory work_directory_;
  UniqueFd process_, number_;  // the claim: locks, which the kernel frees when we die
  UniqueFd journal_;           // locked: says that its capture lives
};

// The recorded processes that are still the same ones, and their descendants of now: a job goes on forking
// between the look at it and the freeze. An error names what could not be done; all else was. Few descriptors
// are taken, however many processes the machine has.

// Their TCP connections work again that the CRIU of the capture `run` has left locked
// (criu::UnlockConnections).
absl::Status UnlockConnectionsOfTree(const std::string& run, const std::vector<ProcessInfo>& recorded);
// Lets those run that were stopped since, or told to stop; gives the PIDs of those that stood. `before` is
// called with all when it is known which.
using BeforeResume = absl::FunctionRef<void(const std::vector<pid_t>& tree)>;
absl::StatusOr<std::vector<pid_t>> ResumeTree(
    const std::vector<ProcessInfo>& recorded, BeforeResume before = [](const std::vector<pid_t>&) {});
// Those that run stop, at once where they are frozen as soon as they are not.
absl::Status StopTree(const std::vector<ProcessInfo>& recorded);
// Returns when they are gone; after a minute at the latest, which is DeadlineExceeded.
absl::Status KillTree(const std::vector<ProcessInfo>& recorded);

}  // namespace rekindle::ckpt
