// Limits (ulimit) that leave a program too little to run at all.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace rekindle {

// May this process have at least `least` descriptors by the limit that holds now? ResourceExhausted: no;
// libraries would abort without a word of why. `program`: for the message.
absl::Status CheckDescriptorLimit(uint64_t least, const char* program);

// An exception for want of memory or threads that nobody has caught ends the process with what was missing,
// and exit status 1. `program` must live for ever. To be called first in main.
void TellOfLimitsAtTheEnd(const char* program);

}  // namespace rekindle
