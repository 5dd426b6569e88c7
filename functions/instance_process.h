// The process of one instance of a function, and who starts them: what the scheduler asks of the node.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"
#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

// How an instance's process ended.
struct InstanceEnd {
  ExitState exit;
  bool out_of_memory = false;  // the kernel ended it because of its memory limit
  std::string why = "";        // it was ended, and not by Kill: why; empty: it is not known, or by itself
};

struct InvocationOutcome {
  std::string request_id;
  absl::Duration duration;        // of the handler
  absl::Duration start;           // zero: the instance was there already
  bool was_there_before = false;  // this is not its first call
  std::string problem;            // "Task timed out after 3.00 seconds"; empty: it answered
  bool timed_out = false;
};

// An instance that has come to no invocation, because the function could not be loaded.
struct StartFailure {
  absl::Duration duration;  // since its start was ordered
  std::string error_type;   // "Runtime.ExitError"
  std::string problem;      // in words; empty: its runtime has said it
  bool timed_out = false;
};

// Destroying it kills what is left of the process. Thread-safe.
class InstanceProcess {
 public:
  virtual ~InstanceProcess() = default;
  virtual pid_t pid() const = 0;
  // With all that it has started. Its end is told by StartOrder::on_end.
  virtual void Kill() = 0;
  virtual uint64_t MemoryBytes() const = 0;
  // The most that it had during the invocation that has ended last; 0: it is not known.
  virtual uint64_t PeakBytes() const = 0;
  // Its handler is loaded: it has asked for its first call.
  virtual void IsReady() = 0;
  // Its first answer is out: what it has touched until now is what the next ones of its image need.
  virtual void HasAnswered() = 0;
  // These are in its log.
  virtual void WasEnded(const std::string& why) = 0;  // InstanceEnd::why
  virtual void StartFails(const StartFailure& failure) = 0;
  virtual void InvocationBegins(const std::string& request_id) = 0;
  // It has ended, or is ended, without having been given that, which is another instance's.
  virtual void InvocationIsTakenBack(const std::string& request_id) = 0;
  // Returns the end of what was logged since it began, at most 4 KiB.
  virtual std::string InvocationEnds(const InvocationOutcome& report) = 0;
};

struct StartOrder {
  std::string function;
  uint64_t revision = 0;
  std::string instance;  // a new name
  StartLevel level = StartLevel::kCold;
  absl::Time copied_by = absl::InfiniteFuture();   // SteadyNow(): a copy that is not made by then is given up
  std::function<void(const InstanceEnd&)> on_end;  // once, from any thread, after Start has succeeded
};

struct StartedInstance {
  std::unique_ptr<InstanceProcess> process;
  UniqueFd listener;  // where its runtime finds the Runtime API: see RuntimeApi::Start
  std::function<bool(int connection)> may_connect;
};

// All calls may block, and come from several threads.
class InstanceStarter {
 public:
  virtual ~InstanceStarter() = default;
  // NotFound: there is nothing to start from at this level. Unavailable: the template that there was is gone,
  // and another one may be made. FailedPrecondition: it can't be forked. DeadlineExceeded: `copied_by` is
  // over.
  virtual absl::StatusOr<StartedInstance> Start(const StartOrder& order) = 0;
  // A live parked copy from which instances are forked; of the function, or (`function` empty) of a
  // dependency image. Returns its size in memory. FailedPrecondition: it can't be forked.
  virtual absl::StatusOr<uint64_t> MakeTemplate(const std::string& function, uint64_t revision,
                                                const std::string& dependency_image) = 0;
  virtual void DropTemplate(const std::string& function, uint64_t revision,
                            const std::string& dependency_image) = 0;
  // Takes the function's own image, of an instance that it starts for that. Returns its size on disk.
  virtual absl::StatusOr<uint64_t> CaptureImage(const std::string& function, uint64_t revision) = 0;
  virtual void DropImage(const std::string& function, uint64_t revision) = 0;
  // What is being made of functions, and copies that are, are given up (Cancelled), and nothing is begun any
  // more: all ends.
  virtual void StopMaking() = 0;
};

}  // namespace rekindle::functions
