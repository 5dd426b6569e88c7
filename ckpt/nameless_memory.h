// Between rekindle-criu-preload.so and Rekindle: C, as page_filter.h.
#pragma once

// In CRIU's environment: Rekindle reads the content of shared memory that has no name (nameless_memory.c).
#define TAKES_NAMELESS_MEMORY "REKINDLE_TAKES_NAMELESS_MEMORY"
