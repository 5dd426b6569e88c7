// How CRIU is asked to give up a dump: within rekindle-criu-preload.so (bounded_waits.c), and by Rekindle. C.
#pragma once

// CRIU handles this signal once it may wait for a task of the job, and ends without it before.
#define GIVE_UP_SIGNAL 50

// For so long it may wait for one task when it has been asked, or its Rekindle has died: nobody then knows
// whether the task can't stop, or is slow because the machine swaps.
#define GIVE_UP_WAIT_SECONDS 10
#define ORPHAN_WAIT_SECONDS 30
