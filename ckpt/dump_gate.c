// Part of rekindle-criu-preload.so: the process that CRIU has made to run rekindle-dump-gate is the dump gate
// itself (criu/enter_mounts.c). Within a container that program is not to be found, and anywhere it takes
// time, for which the job stands still.
//
// Linked against no part of the C library, as page_filter.c.
#include "ckpt/dump_gate.h"

#include "criu/enter_mounts.h"

static int RunGate(const char* file) {
  const char* slash = strrchr(file, '/');
  return strcmp(slash ? slash + 1 : file, DUMP_GATE_PROGRAM) == 0 ? PassDumpGate() : -1;
}

__attribute__((constructor)) static void Begin(void) { run_inside = RunGate; }
