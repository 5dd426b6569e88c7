#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "criu/trusted_links.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_LINKS 40  // as of the kernel

static int OpenLinkless(int folder, const char* path, int flags) {
  struct open_how how;
  memset(&how, 0, sizeof how);
  // Others that a descriptor may have had are the kernel's alone; openat2() refuses them, openat() does not.
  how.flags = (uint64_t)((unsigned)flags & (O_ACCMODE | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC |
                                            O_DSYNC | O_ASYNC | O_DIRECT | O_LARGEFILE | O_DIRECTORY |
                                            O_NOFOLLOW | O_NOATIME | O_CLOEXEC | O_PATH));
  how.resolve = RESOLVE_NO_SYMLINKS;
  return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
}

static int Look(int fd, struct statx* info) {
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, info) == 0;
}

// May others put a link there that counts? A group of one's own has the number of its user. Of a user's own
// links his group can change but the place: what root's job is led to by that would be more than they may
// themselves.
static int OnlyTheirs(const struct statx* folder, unsigned uid) {
  if (folder->stx_uid != 0 && folder->stx_uid != uid) return 0;
  if ((folder->stx_mode & S_ISVTX) != 0) return 1;
  if ((folder->stx_mode & S_IWOTH) != 0) return 0;
  return uid != 0 || (folder->stx_mode & S_IWGRP) == 0 || folder->stx_gid == folder->stx_uid;
}

struct Walk {
  int root, folder;  // the second is its own, or -1
  unsigned uid;
  int trusted, links;
  int keeps_last;  // a link at the end is what is meant (O_NOFOLLOW)
  char rest[PATH_MAX];
};

static int Descend(struct Walk* walk, int next) {
  if (walk->folder >= 0) close(walk->folder);
  walk->folder = next;
  return next >= 0;
}

// The link `link` stands where `rest` goes on behind it.
static int Follow(struct Walk* walk, int link, const char* rest) {
  struct statx info;
  char target[PATH_MAX];
  if (!walk->trusted || !Look(link, &info) || (info.stx_uid != 0 && info.stx_uid != walk->uid) ||
      info.stx_nlink > 1 ||  // anybody may have given it that name
      ++walk->links > MOST_LINKS) {
    errno = ELOOP;
    return 0;
  }
  const ssize_t length = readlinkat(link, "", target, sizeof target);
  const size_t left = strlen(rest);
  if (length <= 0 || (size_t)length + 1 + left >= sizeof target) {
    errno = length < 0 ? errno : ENAMETOOLONG;
    return 0;
  }
  target[length] = '/';
  memcpy(target + length + 1, rest, left + 1);
  memcpy(walk->rest, target, (size_t)length + left + 2);
  if (target[0] != '/') return 1;
  return Descend(walk, (int)syscall(SYS_openat, walk->root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

// The next name of `rest`: 1, or 0 with errno; `*last`: the one that `name` is then is the last.
static int Step(struct Walk* walk, char name[NAME_MAX + 1], int* last) {
  const char* begin = walk->rest;
  while (*begin == '/') ++begin;
  const char* end = begin;
  while (*end != '\0' && *end != '/') ++end;
  const char* rest = end;
  while (*rest == '/') ++rest;
  const size_t length = (size_t)(end - begin);
  if (length > NAME_MAX) {
    errno = ENAMETOOLONG;
    return 0;
  }
  memcpy(name, length == 0 ? "." : begin, length == 0 ? 1 : length);
  name[length == 0 ? 1 : length] = '\0';
  struct statx info;
  if (!Look(walk->folder, &info)) return 0;
  walk->trusted = walk->trusted && OnlyTheirs(&info, walk->uid);
  const int next = (int)syscall(SYS_openat, walk->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (next < 0) return 0;
  int done = Look(next, &info);
  if (done && S_ISLNK(info.stx_mode) && !(walk->keeps_last && *rest == '\0')) {
    done = Follow(walk, next, rest);
    const int error = errno;
    close(next);
    errno = error;
    return done;
  }
  if (!done || *rest == '\0') {
    close(next);
    *last = done;
    return done;
  }
  memmove(walk->rest, rest, strlen(rest) + 1);
  return Descend(walk, next);
}

int OpenByTrustedLinks(int root, const char* path, int flags, unsigned uid) {
  const int fd = OpenLinkless(root, path, flags);
  if (fd >= 0 || errno != ELOOP) return fd;
  if (strlen(path) >= PATH_MAX) {
    errno = ENAMETOOLONG;
    return -1;
  }
  struct Walk walk = {
      .root = root, .folder = -1, .uid = uid, .trusted = 1, .keeps_last = (flags & O_NOFOLLOW) != 0};
  strcpy(walk.rest, path);
  if (!Descend(&walk, (int)syscall(SYS_openat, root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC))) return -1;
  char name[NAME_MAX + 1];
  int last = 0;
  while (!last && Step(&walk, name, &last)) {
  }
  const int opened = last ? OpenLinkless(walk.folder, name, flags) : -1;
  const int error = errno;
  if (walk.folder >= 0) close(walk.folder);
  errno = error;
  return opened;
}
