// May the kernel give huge pages to whoever asks for them (madvise(MADV_HUGEPAGE))? Where it may not, it
// takes the advice all the same and makes small ones.
#pragma once

#include <sys/types.h>

namespace rekindle {

// Does the machine's administrator allow huge pages at all?
bool HugePagesAllowed();
// And the process itself, which may have done without (PR_SET_THP_DISABLE)?
bool HugePagesAllowedFor(pid_t pid);

}  // namespace rekindle
