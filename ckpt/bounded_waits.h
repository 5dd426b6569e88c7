// Within rekindle-criu-preload.so: C.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

// wait4() for tasks that CRIU traces. ETIMEDOUT: see bounded_waits.c.
pid_t BoundedWait(pid_t pid, int* status, int options, struct rusage* usage);
