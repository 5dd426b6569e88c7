// Between a library that is loaded into CRIU (ckpt/run_name.c) and Rekindle. C.
#pragma once

// In CRIU's environment: the UUID that it takes as its "run id".
#define CRIU_RUN "REKINDLE_CRIU_RUN"
