// What a failed CRIU run means, in words: its log has thousands of lines and one that says why.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/subprocess.h"

namespace rekindle::criu {

enum class Operation { kDump, kRestore };

struct Diagnosis {
  std::string id;  // stable, for tests and scripts: "tty", "tcp-established", "pid-in-use", … ; "" unknown
  std::string sentence;  // "The job holds an io_uring descriptor, which CRIU can't dump."
  std::string cure;      // "Start it with io_uring off (UV_USE_IO_URING=0 for Node.js)."
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::vector<std::string> lines;  // the lines of the log that matter, at most 5, without time stamps
};

// Reads a whole log. Where nothing is known the diagnosis has the first error lines and an empty id.
Diagnosis Diagnose(Operation operation, absl::string_view log);

// A status for a CRIU run that ended with `exit`: sentence, cure, log lines and `log_path`.
absl::Status FailureStatus(Operation operation, const ExitState& exit, absl::string_view log,
                           absl::string_view log_path);

// Diagnosis::id of a status that came from FailureStatus; "": unknown, or it did not.
std::string DiagnosisId(const absl::Status& status);

// Is it FailureStatus's of a failure that Diagnose knows nothing of?
bool IsUnknownFailure(const absl::Status& status);

// Did it meet something that is over a moment later (a process that was just ending, a connection that was
// just being made), so that the same again may do better?
bool WasOfTheMoment(const absl::Status& status);

}  // namespace rekindle::criu
