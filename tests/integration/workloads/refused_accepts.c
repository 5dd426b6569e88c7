// To be loaded into Rekindle (LD_PRELOAD): no connection to the socket whose name ends with REFUSE_ACCEPTS
// can be accepted, as in a process that has no descriptor left; after the first REFUSE_AFTER, where that is
// set.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static int IsRefused(int fd) {
  const char* end = getenv("REFUSE_ACCEPTS");
  struct sockaddr_un name;
  socklen_t length = sizeof name;
  memset(&name, 0, sizeof name);
  if (end == NULL || getsockname(fd, (struct sockaddr*)&name, &length) != 0 || name.sun_family != AF_UNIX) {
    return 0;
  }
  const size_t have = strnlen(name.sun_path, sizeof name.sun_path), want = strlen(end);
  return have >= want && memcmp(name.sun_path + have - want, end, want) == 0;
}

int accept4(int fd, struct sockaddr* restrict peer, socklen_t* restrict length, int flags) {
  int (*real)(int, struct sockaddr*, socklen_t*, int) =
      (int (*)(int, struct sockaddr*, socklen_t*, int))dlsym(RTLD_NEXT, "accept4");
  static int taken;
  const char* after = getenv("REFUSE_AFTER");
  if (IsRefused(fd) && (after == NULL || taken++ >= atoi(after))) {
    errno = EMFILE;
    return -1;
  }
  return real(fd, peer, length, flags);
}
