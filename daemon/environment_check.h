// The variables that hold numbers and switches. What reads them takes its default for a value that it does
// not understand, which the programs say when they start: a job may depend on them going on.
#pragma once

#include <string>

namespace rekindle::daemon {

// Names a variable whose value can't be understood, and what it takes; empty: there is none. An empty value
// counts as none.
std::string TroubleInEnvironment();
// Logs such a one, and what is wrong with those that the daemon alone reads.
void WarnOfDaemonEnvironment();

}  // namespace rekindle::daemon
