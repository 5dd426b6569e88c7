// rekindle-dump-gate.
#include "ckpt/dump_gate.h"

int main() { return PassDumpGate(); }
