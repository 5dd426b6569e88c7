// How CRIU is asked to give up a dump: within rekindle-criu-preload.so (give_up.c), and by Rekindle. C.
#pragma once

// CRIU handles this signal once it may wait for a task of the job, and ends without it before.
#define GIVE_UP_SIGNAL 50

// For so long it may wait for one task after it has been asked. Machines that swap are slow.
#define GIVE_UP_WAIT_SECONDS 10
