// Between rekindle-criu-preload.so (extra_names.c) and Rekindle: C, as page_filter.h.
//
// For the time of a dump CRIU gives a file whose name is gone an extra one beside the lost: "link_remap.N".
// So do other dumps, with the same small numbers, perhaps in the same folder, and one that dies leaves its
// names there, where they would be in the way of all that follow. Here each dump has names of its own, and
// writes them down before it makes them.
#pragma once

// What CRIU calls such a name.
#define EXTRA_NAME "link_remap."
// Where there is a CRIU_RUN (criu/run_name.h) the name on disk ends with a dot and that.

// A list in CRIU's work folder: their paths on disk, from the job's root folder, one a line.
#define EXTRA_NAMES_LIST "extra-names"

// From nameless_memory.c: takes care of the name of a file that can get none. 0: it is none of these; else
// what linkat() is to return.
int NameNameless(int file, int folder, const char* name, int* result);
