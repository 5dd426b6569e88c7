// How soon the kernel ends a process when the machine's memory runs out: its oom_score_adj, from -1000
// (never) to 1000, which children inherit, and images have.
#pragma once

#include <optional>

namespace rekindle {

// Of this process; nothing: it can't be seen.
std::optional<int> OwnOomScore();

// For programs that many others depend on: from now on those go first. As far as it may (CAP_SYS_RESOURCE);
// who is spared already stays as it is. To be called in main, ahead of threads.
void SpareFromOutOfMemory();

// What a process is to have that this one starts for somebody else, and who has said nothing: what this one
// would have without that it is spared. Nothing: it inherits the right one. Thread-safe.
std::optional<int> OomScoreForOthers();

// Gives it to this process. Async-signal-safe. False: that may not be (errno).
bool TakeOnOomScore(int score);

}  // namespace rekindle
