/* After fork: open file descriptions of the copy's own, so that file offsets are no longer shared. */
#ifndef REKINDLE_HOOK_OWN_FILES_H_
#define REKINDLE_HOOK_OWN_FILES_H_

#include <stddef.h>

/* The flags to open a file again with, from what F_GETFL says. */
int rekindle_reopen_flags(int status_flags);

/* Gives every regular file and directory a description of its own with the same flags and offset. Descriptors
 * that shared one among themselves go on doing so. Left alone: standard output and error (copies append to
 * one log, as they do on a pipe or a terminal), `ours`, and what can't be opened again. `proc` is a directory
 * of procfs in which this process is visible. */
void rekindle_own_files(int proc, const int* ours, size_t our_count);

#endif /* REKINDLE_HOOK_OWN_FILES_H_ */
