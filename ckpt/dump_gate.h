// The dump gate: CRIU runs it as its action script. At the stage "post-dump" the images are complete and
// the job still stands; it then waits for one byte from Rekindle on the socket "dump-gate.sock" in the
// working directory: 'g' lets the job go on and the dump succeed, anything else, or a Rekindle that has died,
// lets the job go on and the dump fail. Needed because CRIU puts the job's own pages into the streaming
// pipes: those not yet read when the job runs again could still change.
//
// Nothing but system calls: it runs while the job is frozen. C.
#pragma once

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DUMP_GATE_PROGRAM "rekindle-dump-gate"
#define DUMP_GATE_SOCKET "dump-gate.sock"

// The exit status that CRIU goes by.
static inline int PassDumpGate(void) {
  const char* stage = getenv("CRTOOLS_SCRIPT_ACTION");
  if (!stage || strcmp(stage, "post-dump") != 0) return 0;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, DUMP_GATE_SOCKET, sizeof DUMP_GATE_SOCKET);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) return 1;
  char verdict = 0;
  return read(fd, &verdict, 1) == 1 && verdict == 'g' ? 0 : 1;
}
