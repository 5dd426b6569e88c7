// Part of rekindle-criu-restore.so: what CRIU makes, removes, links and gives away by name for a job that
// isn't root's, it does with the rights of the job's user.
//
// CRIU restores as root. It binds sockets to the names that they had, gives them to their owner, makes files
// again whose names were gone, links and removes them, all by name. Whoever may change a folder on the way
// can have another file there at that moment: give root's file to himself, by a link in the place of a socket
// that was just bound, or have it removed. Looking before or after doesn't help, as he is as fast. So the
// kernel is asked with his rights.
//
// What he may not do, but was done before he had so few (a log in a folder of root's), is done as root where
// nobody else could have a hand in it: each folder on the way is root's, no other may write to it, and none
// is a link.
//
// As root, too, where a file system is a copy's alone, with nothing in it but what Rekindle and CRIU have put
// there: nobody else has a hand in that as long as the copy does not run. Links on the way, which are the
// image's, and what is mounted below are left out.
//
// That the job had a file there is sure of files, whose names are the kernel's. A socket's is what the job
// gave it, perhaps where it saw a file system of its own in that place. So as root only sockets are bound and
// removed that were seen there when the image was taken.
//
// Files that are only opened are looked at afterwards (restore/opened_files_check.h). But they are not
// reached by symbolic links that somebody else may have put in their place or in that of a folder, whosever
// the job is: root's would write to what a stranger chose. No part of the C library is linked, so that it
// fits the library CRIU runs with, whichever that is.
#include "criu/user_bounds.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "criu/enter_mounts.h"
#include "criu/open_mode.h"
#include "criu/trusted_links.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define MOST_GROUPS 65536
#define MOST_PLACED 1000u
#define MOST_TEXT \
  (MOST_GROUPS * 11u + PATH_MAX + MOST_PLACED * (sizeof((struct sockaddr_un*)0)->sun_path + 1u))

// In the names that CRIU gives to files and folders whose own were gone.
static const char kGhost[] = ".cr.";

enum State { kNotRead, kUnbounded, kBounded, kBroken };

static enum State state;
static unsigned user, group;
static unsigned groups[MOST_GROUPS], own_groups[MOST_GROUPS];
static size_t group_count;
static char text[MOST_TEXT];
static const char *own, *own_end;        // folders in it, each with a space or the line's end behind it
static const char *placed, *placed_end;  // names of sockets in it

static int Number(const char** at, unsigned* value) {
  const char* from = *at;
  uint64_t sum = 0;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    sum = sum * 10 + (uint64_t)(**at - '0');
    if (sum > UINT32_MAX) return 0;
  }
  *value = (unsigned)sum;
  return *at != from;
}

// Of what is not understood nothing is done.
static void Read(void) {
  if (state != kNotRead) return;
  const char* path = getenv(USER_BOUNDS_VARIABLE);
  if (path == NULL) {
    state = kUnbounded;
    return;
  }
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  // It may come yet, with the request.
  if (fd < 0 && errno == ENOENT) return;
  state = kBroken;
  if (fd < 0) return;
  size_t length = 0;
  for (;;) {
    const ssize_t n = read(fd, text + length, sizeof text - 1 - length);
    if (n <= 0) break;
    length += (size_t)n;
  }
  close(fd);
  text[length] = '\0';
  const char* at = text;
  if (!Number(&at, &user) || *at++ != ' ' || !Number(&at, &group)) return;
  for (; *at == ' ' && group_count < MOST_GROUPS; ++group_count) {
    ++at;
    if (!Number(&at, &groups[group_count])) return;
  }
  if (*at != '\n') return;
  own = at + 1;
  own_end = memchr(own, '\n', (size_t)(text + length - own));
  if (own_end == NULL) return;
  ++own_end;
  state = user == 0 ? kUnbounded : kBounded;
  placed = own_end;
  placed_end = text + length;
}

static int Bounded(void) {
  const int error = errno;
  Read();
  errno = error;
  return state == kBounded || state == kBroken;
}

// 0: they are not taken, with errno.
static int TakeRights(long* had_groups) {
  if (state == kBroken) {
    errno = EPERM;
    return 0;
  }
  *had_groups = syscall(SYS_getgroups, MOST_GROUPS, own_groups);
  if (*had_groups < 0 || syscall(SYS_setgroups, group_count, groups) != 0) return 0;
  syscall(SYS_setfsgid, group);
  syscall(SYS_setfsuid, user);
  // An impossible one: tells the present. The kernel takes root's capabilities over files away with the
  // number.
  if ((unsigned)syscall(SYS_setfsuid, -1) == user && (unsigned)syscall(SYS_setfsgid, -1) == group) return 1;
  errno = EPERM;
  return 0;
}

static void GiveBackRights(long had_groups) {
  const int error = errno;
  syscall(SYS_setfsuid, 0);
  syscall(SYS_setfsgid, 0);
  if (had_groups >= 0) syscall(SYS_setgroups, (size_t)had_groups, own_groups);
  // Else /proc/self isn't ours to open from now on.
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  errno = error;
}

struct Place {
  int folder;
  char name[NAME_MAX + 1];
};

static int Look(int at, const char* path, struct statx* info) {
  return syscall(SYS_statx, at, path, AT_EMPTY_PATH, STATX_BASIC_STATS, info) == 0;
}

// Only root could have put it there, and only root can change it.
static int IsRoots(int folder) {
  struct statx info;
  return Look(folder, "", &info) && info.stx_uid == 0 && (info.stx_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static int IsRootFolder(int folder) {
  struct statx there, root;
  return Look(folder, "", &there) && Look(AT_FDCWD, "/", &root) &&
         there.stx_dev_major == root.stx_dev_major && there.stx_dev_minor == root.stx_dev_minor &&
         there.stx_ino == root.stx_ino;
}

static int IsOnFileSystemOf(int folder, const struct statx* other) {
  struct statx info;
  return Look(folder, "", &info) && info.stx_dev_major == other->stx_dev_major &&
         info.stx_dev_minor == other->stx_dev_minor;
}

// Where the rest of a path leads from a folder, which it closes, if every folder on the way is on the same
// file system as this one, or, where `system` is null, root's. The caller closes the last one.
static int Walk(int folder, const char* path, const struct statx* system, struct Place* place) {
  for (;;) {
    while (*path == '/') ++path;
    const char* end = path;
    while (*end != '\0' && *end != '/') ++end;
    const size_t length = (size_t)(end - path);
    if (folder < 0 || length == 0 || length > NAME_MAX) break;
    if (system != NULL ? !IsOnFileSystemOf(folder, system) : !IsRoots(folder)) break;
    memcpy(place->name, path, length);
    place->name[length] = '\0';
    if (strcmp(place->name, ".") == 0 || strcmp(place->name, "..") == 0) break;
    if (*end == '\0') {
      place->folder = folder;
      return 1;
    }
    const int next =
        (int)syscall(SYS_openat, folder, place->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    folder = next;
    path = end;
  }
  if (folder >= 0) close(folder);
  return 0;
}

// A link, which is the image's, or another file system, which is mounted there.
static int LeadsElsewhere(const struct Place* place, const struct statx* system) {
  struct statx there;
  if (syscall(SYS_statx, place->folder, place->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) != 0)
    return 0;
  return S_ISLNK(there.stx_mode) || there.stx_dev_major != system->stx_dev_major ||
         there.stx_dev_minor != system->stx_dev_minor;
}

// Where `path` leads in a file system that is this copy's alone.
static int FindOwnPlace(int at, const char* path, struct Place* place) {
  if (path[0] != '/' && (at == AT_FDCWD || !IsRootFolder(at))) return 0;
  while (*path == '/') ++path;
  for (const char *name = own, *end; name < own_end; name = end + 1) {
    end = name;
    while (*end != ' ' && *end != '\n') ++end;
    const size_t length = (size_t)(end - name);
    char folder[PATH_MAX];
    if (length < 2 || length >= sizeof folder || strncmp(path, name + 1, length - 1) != 0 ||
        path[length - 1] != '/') {
      continue;
    }
    memcpy(folder, name, length);
    folder[length] = '\0';
    const int opened =
        (int)syscall(SYS_openat, AT_FDCWD, folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct statx system;
    if (opened < 0) return 0;
    if (!Look(opened, "", &system)) {
      close(opened);
      return 0;
    }
    if (!Walk(opened, path + length, &system, place)) return 0;
    if (!LeadsElsewhere(place, &system)) return 1;
    close(place->folder);
    return 0;
  }
  return 0;
}

// Where `path` leads, if every folder on the way is root's.
static int FindRootsPlace(int at, const char* path, struct Place* place) {
  if (path[0] != '/' && (at == AT_FDCWD || !IsRootFolder(at))) return 0;
  return Walk((int)syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC), path, NULL, place);
}

static int IsPlacedSocket(const char* path) {
  const char* name = placed;
  while (name < placed_end) {
    const size_t length = strnlen(name, (size_t)(placed_end - name));
    if (length == (size_t)(placed_end - name)) return 0;  // it was cut off
    if (strcmp(name, path) == 0) return 1;
    name += length + 1;
  }
  return 0;
}

static int FindPlaceToRemove(int at, const char* path, struct Place* place) {
  if (!FindRootsPlace(at, path, place)) return 0;
  struct statx there;
  const int found =
      syscall(SYS_statx, place->folder, place->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) == 0;
  if (found && (!S_ISSOCK(there.stx_mode) || (there.stx_uid == user && IsPlacedSocket(path)))) return 1;
  close(place->folder);
  return 0;
}

// Of root's only what CRIU has made there itself: files that were gone, and sockets.
static int FindPlaceToChange(int at, const char* path, struct Place* place) {
  if (!FindRootsPlace(at, path, place)) return 0;
  struct statx there;
  if (strstr(place->name, kGhost) != NULL ||
      (IsPlacedSocket(path) &&
       syscall(SYS_statx, place->folder, place->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) == 0 &&
       S_ISSOCK(there.stx_mode))) {
    return 1;
  }
  close(place->folder);
  return 0;
}

// CRIU names folders on the way to a file from a root folder that it has open. By an absolute name it makes a
// folder that was gone itself, as a ghost, and those on the way to a socket that was gone, which nobody has
// seen.
static int FindPlaceOfFolder(int at, const char* path, struct Place* place) {
  return (at != AT_FDCWD || strstr(path, kGhost) != NULL) && FindRootsPlace(at, path, place);
}

static int Denied(void) { return errno == EACCES || errno == EPERM || errno == EROFS; }

// `call` is a system call that uses `at` and `path`. It is made with the user's rights, and where these do
// not suffice as root in a place of the copy's own, or one that `find` finds, if any.
#define DO_BOUNDED_IN(find, result, at, path, call)                                               \
  do {                                                                                            \
    long had_groups_ = -1;                                                                        \
    if (!TakeRights(&had_groups_)) {                                                              \
      GiveBackRights(had_groups_);                                                                \
      return -1;                                                                                  \
    }                                                                                             \
    result = call;                                                                                \
    GiveBackRights(had_groups_);                                                                  \
    struct Place place_;                                                                          \
    const int error_ = errno;                                                                     \
    if (result < 0 && Denied() && (FindOwnPlace(at, path, &place_) || find(at, path, &place_))) { \
      at = place_.folder;                                                                         \
      path = place_.name;                                                                         \
      result = call;                                                                              \
      const int last_ = errno;                                                                    \
      close(place_.folder);                                                                       \
      errno = last_;                                                                              \
    } else {                                                                                      \
      errno = error_;                                                                             \
    }                                                                                             \
  } while (0)
#define DO_BOUNDED(result, at, path, call) DO_BOUNDED_IN(FindRootsPlace, result, at, path, call)

static int Remove(int at, const char* path, int flags) {
  if (!Bounded()) return (int)syscall(SYS_unlinkat, at, path, flags);
  long result;
  if (flags == AT_REMOVEDIR) {
    DO_BOUNDED_IN(FindPlaceOfFolder, result, at, path, syscall(SYS_unlinkat, at, path, flags));
  } else {
    DO_BOUNDED_IN(FindPlaceToRemove, result, at, path, syscall(SYS_unlinkat, at, path, flags));
  }
  return (int)result;
}

int unlinkat(int at, const char* path, int flags) { return Remove(at, path, flags); }

int unlink(const char* path) { return Remove(AT_FDCWD, path, 0); }

// CRIU's own, of jobs with mounts of their own: an empty folder directly in /tmp.
static int IsOwnFolder(const char* path) {
  static const char kOwn[] = "/tmp/.criu.";
  return strncmp(path, kOwn, sizeof kOwn - 1) == 0 && strchr(path + sizeof kOwn - 1, '/') == NULL;
}

int rmdir(const char* path) {
  if (IsOwnFolder(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
  return Remove(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int at, const char* path, mode_t mode) {
  if (!Bounded()) return (int)syscall(SYS_mkdirat, at, path, mode);
  long result;
  DO_BOUNDED_IN(FindPlaceOfFolder, result, at, path, syscall(SYS_mkdirat, at, path, mode));
  return (int)result;
}

int mknod(const char* path, mode_t mode, dev_t device) {
  int at = AT_FDCWD;
  if (!Bounded()) return (int)syscall(SYS_mknodat, at, path, mode, (unsigned)device);
  long result;
  DO_BOUNDED(result, at, path, syscall(SYS_mknodat, at, path, mode, (unsigned)device));
  return (int)result;
}

int symlink(const char* target, const char* path) {
  int at = AT_FDCWD;
  if (!Bounded()) return (int)syscall(SYS_symlinkat, target, at, path);
  long result;
  DO_BOUNDED(result, at, path, syscall(SYS_symlinkat, target, at, path));
  return (int)result;
}

int fchownat(int at, const char* path, uid_t to_user, gid_t to_group, int flags) {
  // What is open is CRIU's own.
  if (path[0] == '\0' || !Bounded()) return (int)syscall(SYS_fchownat, at, path, to_user, to_group, flags);
  long result;
  DO_BOUNDED_IN(FindPlaceToChange, result, at, path,
                syscall(SYS_fchownat, at, path, to_user, to_group, flags));
  return (int)result;
}

int fchmodat(int at, const char* path, mode_t mode, int flags) {
  if (flags == 0 && !Bounded()) return (int)syscall(SYS_fchmodat, at, path, mode);
  if (!Bounded()) return (int)syscall(SYS_fchmodat2, at, path, mode, flags);
  long result;
  if (flags == 0) {
    DO_BOUNDED_IN(FindPlaceToChange, result, at, path, syscall(SYS_fchmodat, at, path, mode));
  } else {
    DO_BOUNDED_IN(FindPlaceToChange, result, at, path, syscall(SYS_fchmodat2, at, path, mode, flags));
  }
  return (int)result;
}

int lutimes(const char* path, const struct timeval times[2]) {
  int at = AT_FDCWD;
  struct timespec spec[2];
  for (int i = 0; times != NULL && i < 2; ++i) {
    spec[i].tv_sec = times[i].tv_sec;
    spec[i].tv_nsec = times[i].tv_usec * 1000;
  }
  const struct timespec* to = times != NULL ? spec : NULL;
  if (!Bounded()) return (int)syscall(SYS_utimensat, at, path, to, AT_SYMLINK_NOFOLLOW);
  long result;
  DO_BOUNDED_IN(FindPlaceToChange, result, at, path,
                syscall(SYS_utimensat, at, path, to, AT_SYMLINK_NOFOLLOW));
  return (int)result;
}

static int FindOwnOrRootsPlace(int at, const char* path, struct Place* place) {
  return FindOwnPlace(at, path, place) || FindRootsPlace(at, path, place);
}

// Both names must be the user's, or both root's or the copy's.
static int LinkBounded(int from_at, const char* from, int to_at, const char* to, int flags) {
  long had_groups = -1;
  if (!TakeRights(&had_groups)) {
    GiveBackRights(had_groups);
    return -1;
  }
  long result = syscall(SYS_linkat, from_at, from, to_at, to, flags);
  GiveBackRights(had_groups);
  if (result == 0 || !Denied()) return (int)result;
  const int error = errno;
  struct Place source, target;
  if (FindOwnOrRootsPlace(from_at, from, &source)) {
    if (FindOwnOrRootsPlace(to_at, to, &target)) {
      result = syscall(SYS_linkat, source.folder, source.name, target.folder, target.name, flags);
      const int last = errno;
      close(target.folder);
      close(source.folder);
      errno = last;
      return (int)result;
    }
    close(source.folder);
  }
  errno = error;
  return -1;
}

int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  if (from[0] == '\0' || !Bounded()) return (int)syscall(SYS_linkat, from_at, from, to_at, to, flags);
  return LinkBounded(from_at, from, to_at, to, flags);
}

// CRIU moves away what has a socket's name that was removed, and back. Of what is root's nobody knows that
// the socket was there.
int rename(const char* from, const char* to) {
  if (!Bounded()) return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  long had_groups = -1;
  long result = -1;
  if (TakeRights(&had_groups)) result = syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  GiveBackRights(had_groups);
  return (int)result;
}

int bind(int fd, const struct sockaddr* address, socklen_t length) {
  const struct sockaddr_un* named = (const struct sockaddr_un*)address;
  if (address->sa_family != AF_UNIX || length <= sizeof named->sun_family || named->sun_path[0] == '\0' ||
      !Bounded())
    return (int)syscall(SYS_bind, fd, address, length);
  char name[sizeof named->sun_path + 1];
  size_t bytes = length - sizeof named->sun_family;
  if (bytes > sizeof named->sun_path) bytes = sizeof named->sun_path;
  memcpy(name, named->sun_path, bytes);
  name[bytes] = '\0';
  long had_groups = -1;
  if (!TakeRights(&had_groups)) {
    GiveBackRights(had_groups);
    return -1;
  }
  const long result = syscall(SYS_bind, fd, address, length);
  GiveBackRights(had_groups);
  // The socket's name is what it is bound to, as it is told: no other way leads there. But where all of it is
  // root's, or the copy's, nobody can change what that way is.
  struct Place place;
  const int error = errno;
  if (result == 0 || !Denied() ||
      (!FindOwnPlace(AT_FDCWD, name, &place) &&
       (!IsPlacedSocket(name) || !FindRootsPlace(AT_FDCWD, name, &place)))) {
    errno = error;
    return (int)result;
  }
  close(place.folder);
  return (int)syscall(SYS_bind, fd, address, length);
}

static int Open(int at, const char* path, int flags, mode_t mode) {
  int outside;
  if (OpenedOutside(path, flags, &outside)) return outside;
  // The first of the image's files: what the job is is known by now, and the file that tells can be seen
  // still.
  static const char kFirst[] = "pstree.img";
  if (state == kNotRead && strcmp(path, kFirst) == 0) (void)Bounded();
  // The job's files CRIU names from its root folder, its own from elsewhere.
  if ((flags & O_CREAT) == 0 && at != AT_FDCWD && path[0] != '/' && IsRootFolder(at) &&
      getenv(ANY_LINKS_VARIABLE) == NULL) {
    return OpenByTrustedLinks(at, path, flags, Bounded() && state == kBounded ? user : 0);
  }
  if ((flags & O_CREAT) == 0 || path[0] != '/' || strstr(path, kGhost) == NULL || !Bounded())
    return (int)syscall(SYS_openat, at, path, flags, mode);
  long result;
  DO_BOUNDED(result, at, path, syscall(SYS_openat, at, path, flags, mode));
  return (int)result;
}

OPENS_BY(Open)
