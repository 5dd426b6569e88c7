// The dump gate: CRIU runs it as its action script. It waits for one byte from Rekindle on a socket in the
// working directory: 'g' lets CRIU go on, anything else, or a Rekindle that has died, has the dump fail and
// the job go on.
//
// "pre-dump", "freeze-gate.sock": CRIU is ready, and has not touched the job yet. A job that stands at a
// boundary of its own need not wait until CRIU has started. Where there is no such socket nobody waits.
//
// "post-dump", "dump-gate.sock": the images are complete and the job still stands. Needed because CRIU puts
// the job's own pages into the streaming pipes: those not yet read when the job runs again could still
// change.
//
// Nothing but system calls: it runs while the job is frozen. C.
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DUMP_GATE_PROGRAM "rekindle-dump-gate"
#define DUMP_GATE_SOCKET "dump-gate.sock"
#define FREEZE_GATE_SOCKET "freeze-gate.sock"

// The exit status that CRIU goes by.
static inline int PassDumpGate(void) {
  const char* stage = getenv("CRTOOLS_SCRIPT_ACTION");
  const int freezes = stage && strcmp(stage, "pre-dump") == 0;
  if (!freezes && (!stage || strcmp(stage, "post-dump") != 0)) return 0;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, freezes ? FREEZE_GATE_SOCKET : DUMP_GATE_SOCKET);
  if (fd < 0) return 1;
  if (connect(fd, (struct sockaddr*)&address, sizeof address) != 0) return freezes && errno == ENOENT ? 0 : 1;
  char verdict = 0;
  return read(fd, &verdict, 1) == 1 && verdict == 'g' ? 0 : 1;
}
