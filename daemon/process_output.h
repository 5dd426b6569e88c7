// What a child process writes to its standard output and error, kept in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/stoppable_thread.h"
#include "base/unique_fd.h"
#include "daemon/wakeup.h"

namespace rekindle::daemon {

// Owned by one thread at a time.
class ProcessOutput {
 public:
  // The last `most` bytes are kept.
  static absl::StatusOr<std::unique_ptr<ProcessOutput>> Make(size_t most);
  ProcessOutput(const ProcessOutput&) = delete;
  ProcessOutput& operator=(const ProcessOutput&) = delete;

  // For the process; to be closed here once it has it.
  UniqueFd TakeWriteEnd() { return std::move(write_); }
  // To be called before the process is started. ResourceExhausted: there can be no more threads.
  absl::Status Follow();
  // All of it, once it has ended: what it has left running may be able to write for ever, and is not waited
  // for longer than a few seconds. Nothing is read after that.
  std::string Text(absl::Duration patience = absl::Seconds(5));

 private:
  explicit ProcessOutput(size_t most) : most_(most) {}
  void Read();  // on its thread
  const size_t most_;
  UniqueFd read_, write_;
  Wakeup ended_;
  std::string text_;  // the thread's, until it has ended
  StoppableThread thread_;
};

}  // namespace rekindle::daemon
