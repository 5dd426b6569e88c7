// How long an image on its way between two programs may stand still before whoever waits for it lets go: what
// it needs of memory and store stays as long.
#pragma once

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"

namespace rekindle {

// REKINDLE_STREAM_TIMEOUT in seconds, ten minutes where it says nothing that can be understood. 0: for ever.
inline absl::Duration StreamPatience() {
  const char* text = ::getenv("REKINDLE_STREAM_TIMEOUT");
  double seconds = 0;
  if (text == nullptr || !absl::SimpleAtod(text, &seconds) || !(seconds >= 0)) return absl::Minutes(10);
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

}  // namespace rekindle
