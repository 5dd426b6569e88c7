// Between Rekindle's libraries that are loaded into CRIU (enter_mounts.c) and Rekindle. C.
#pragma once

// In CRIU's environment: the number of its descriptor of the mount namespace that it goes into.
#define ENTERED_MOUNTS "REKINDLE_ENTERED_MOUNTS"
// And, with any value: what CRIU would run there it may run.
#define ENTERED_RUNS "REKINDLE_ENTERED_RUNS"
// And the path of a file with what CRIU knows of the kernel (kernel_facts.h), also where it goes into none.
// Without it that is what is in /run.
#define ENTERED_KNOWN "REKINDLE_ENTERED_KNOWN"
// And the path of a plugin that is loaded before; CRIU gets it when it loads one of the same name, and no
// other.
#define ENTERED_PLUGIN "REKINDLE_ENTERED_PLUGIN"

#ifdef __cplusplus
extern "C" {
#endif

// Is `path` one that CRIU must not open inside? Then `*fd` is what open() gives, with errno.
__attribute__((visibility("hidden"))) int OpenedOutside(const char* path, int flags, int* fd);

// What a process of CRIU's does in place of the program `file`: its exit status, or -1: nothing, it fails.
typedef int (*RunInside)(const char* file);
// May be set before main().
__attribute__((visibility("hidden"))) extern RunInside run_inside;

#ifdef __cplusplus
}
#endif
