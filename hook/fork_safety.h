/* Whether a process can be copied by fork without the copy, or the process itself, coming to harm. */
#ifndef REKINDLE_HOOK_FORK_SAFETY_H_
#define REKINDLE_HOOK_FORK_SAFETY_H_

#include <stdbool.h>
#include <stddef.h>

/* True when it can. False: `why` says what is in the way and, where there is one, the cure. `ours` are
 * descriptors that the hook itself holds. */
bool rekindle_fork_is_safe(const int* ours, size_t our_count, char* why, size_t why_size);

/* The same, but for the memory mappings: looking at a thousand of them takes longer than the fork. For a
 * process that was found safe and has only waited since. */
bool rekindle_fork_is_still_safe(const int* ours, size_t our_count, char* why, size_t why_size);

#endif /* REKINDLE_HOOK_FORK_SAFETY_H_ */
