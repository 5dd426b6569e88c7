/* The page through which memory_job and whoever watches it talk: a file that both map shared. All words are
 * written with relaxed 64-bit stores by one side only (the `request` words by the watcher, the rest by the
 * job). The layout is mirrored in harness/memory_job.py. */
#ifndef TESTS_INTEGRATION_WORKLOADS_MEMORY_JOB_H_
#define TESTS_INTEGRATION_WORKLOADS_MEMORY_JOB_H_

#include <stdint.h>

struct MemoryJobStatus {
  uint64_t ready;          /* 1 once the memory is filled */
  uint64_t ticks;          /* loop rounds so far */
  uint64_t last_tick_ns;   /* CLOCK_MONOTONIC of the last round */
  uint64_t largest_gap_ns; /* between two rounds since `gap_resets` last changed */
  uint64_t gap_reset_request, gap_resets;
  uint64_t touch_pages, touch_request, touches; /* overwrite that many pages, spread evenly, with new noise */
  uint64_t digest_request, digests, digest;     /* of all the memory */
  uint64_t bytes;
  uint64_t rounds_of_noise; /* seed of the next overwrite: part of the job's private state */
};

#endif
