// Part of rekindle-criu-restore.so: an eventfd that was a semaphore is one again (criu/semaphore_mark.h).
//
// CRIU makes each eventfd without the flag that makes it a semaphore, and then sets the flags that it has in
// the image. The mark is among them: then another eventfd takes the place of the one that CRIU has just made,
// and CRIU is told that the descriptor has the mark, for which it looks, once.
#include "criu/restored_semaphores.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "criu/semaphore_mark.h"

// The one that CRIU has made last, for as long as its calls are about that one.
static int newest = -1;
static unsigned newest_count;
static int is_marked;

int eventfd(unsigned count, int flags) {
  newest = (int)syscall(SYS_eventfd2, count, flags);
  newest_count = count;
  is_marked = 0;
  return newest;
}

static int PutSemaphoreInPlace(int flags) {
  const int made = (int)syscall(SYS_eventfd2, newest_count, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (made < 0) return -1;
  long done = syscall(SYS_fcntl, made, F_SETFL, flags & ~SEMAPHORE_MARK);
  if (done == 0) done = syscall(SYS_dup3, made, newest, 0);
  const int error = errno;
  syscall(SYS_close, made);
  errno = error;
  return done < 0 ? -1 : 0;
}

int IsAboutSemaphore(int fd, int command, int flags, int* result) {
  if (fd < 0 || fd != newest || (command != F_GETFL && command != F_SETFL)) {
    newest = -1;
    return 0;
  }
  if (command == F_SETFL) {
    is_marked = (flags & SEMAPHORE_MARK) != 0;
    if (!is_marked) newest = -1;
    if (is_marked) *result = PutSemaphoreInPlace(flags);
    return is_marked;
  }
  if (!is_marked) return 0;
  newest = -1;
  *result = (int)syscall(SYS_fcntl, fd, F_GETFL);
  if (*result >= 0) *result |= SEMAPHORE_MARK;
  return 1;
}
