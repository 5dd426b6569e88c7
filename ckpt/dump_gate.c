// Part of rekindle-criu-preload.so: within a container (criu/enter_mounts.c), where rekindle-dump-gate is not
// to be found, the process that CRIU has made to run it is the dump gate itself.
//
// Linked against no part of the C library, as page_filter.c.
#include "ckpt/dump_gate.h"

#include "criu/enter_mounts.h"

static int RunGate(const char* file) {
  const char* slash = strrchr(file, '/');
  return strcmp(slash ? slash + 1 : file, DUMP_GATE_PROGRAM) == 0 ? PassDumpGate() : -1;
}

__attribute__((constructor)) static void Begin(void) { run_inside = RunGate; }
