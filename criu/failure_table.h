// The failures that Diagnose() knows. Private to criu/.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace rekindle::criu {

// Which of several matching entries explains a log: a cause beats what follows from it.
enum class Strength { kCause, kConsequence };

inline constexpr uint8_t kOnDump = 1, kOnRestore = 2, kOnBoth = 3;

struct KnownFailure {
  const char* id;
  uint8_t operations;
  Strength strength;
  absl::StatusCode code;
  // Any of these on one line of the log. '*' stands for any text (as little as possible); what the first two
  // of them stand for may be used as $1 and $2 below, in what is shown to people.
  std::vector<const char*> patterns;
  const char* sentence;
  const char* cure;
};

// The last that CRIU says of a restore's failure. What comes then is its own doing.
inline constexpr char kRestoringFailed[] = "Restoring FAILED.";

// In order of preference among entries that match one line.
const std::vector<KnownFailure>& KnownFailures();

}  // namespace rekindle::criu
