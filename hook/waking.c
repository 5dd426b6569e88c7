#include "hook/waking.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hook/open_apart.h"

enum { kMostGroups = 1024 };

static const char kOutput[] = "REKINDLE_OUTPUT=";
static const char kRunAs[] = "REKINDLE_RUN_AS=";

static bool StartsWith(const char* text, const char* prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int WriteTo(const char* path, char* why, size_t size) {
  int fd = rekindle_open_apart(path, O_WRONLY | O_APPEND | O_NOCTTY);
  bool done = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0;
  int error = errno;
  if (fd >= 0) close(fd);
  if (done) return 0;
  snprintf(why, size, "writing output to %s: %s", path, strerror(error));
  errno = error;
  return -1;
}

/* A number and what follows it: ':' or ',' (skipped), or the end. */
static bool Number(const char** text, unsigned long* number) {
  char* end;
  errno = 0;
  *number = strtoul(*text, &end, 10);
  if (errno != 0 || end == *text || *number > 0xfffffffeUL || **text == '-') return false;
  if (*end != '\0' && *end != ':' && *end != ',') return false;
  *text = *end == '\0' ? end : end + 1;
  return true;
}

/* Copies of a template would share the one that it has, with all keys in it. Before the change of user: a
 * user may have few keys, and each copy's would count. Of this thread alone: only what has one can be a
 * template. */
static int LeaveSessionKeyring(void) {
  if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) >= 0) return 0;
  return errno == ENOSYS || errno == EPERM ? 0 : -1; /* there are no keys, or none for us */
}

static int Become(const char* user, char* why, size_t size) {
  unsigned long uid, gid, group;
  gid_t groups[kMostGroups];
  size_t count = 0;
  const char* text = user;
  bool good = Number(&text, &uid) && *text != '\0' && Number(&text, &gid);
  while (good && *text != '\0') {
    good = count < kMostGroups && Number(&text, &group);
    if (good) groups[count++] = (gid_t)group;
  }
  if (!good) {
    snprintf(why, size, "\"%.200s\" is no user: UID:GID[:GID,...]", user);
    errno = EBADMSG;
    return -1;
  }
  if (uid == geteuid() && gid == getegid()) return 0;
  const int dumpable = prctl(PR_GET_DUMPABLE);
  /* By the C library's functions: they reach all threads. */
  if (LeaveSessionKeyring() == 0 && setgroups(count, groups) == 0 &&
      setresgid((gid_t)gid, (gid_t)gid, (gid_t)gid) == 0 &&
      setresuid((uid_t)uid, (uid_t)uid, (uid_t)uid) == 0) {
    /* The kernel takes it for a program that hides something from its user now. It is his as one is that he
     * has started: he may look at it, and take an image of it. */
    if (dumpable == 1) prctl(PR_SET_DUMPABLE, 1);
    return 0;
  }
  int error = errno;
  snprintf(why, size, "becoming user %lu: %s", uid, strerror(error));
  errno = error;
  return -1;
}

int rekindle_act_on_waking(char** environment, char* why, size_t size) {
  char *output = NULL, *user = NULL;
  char** kept = environment;
  for (char** variable = environment; *variable != NULL; ++variable) {
    char** own = StartsWith(*variable, kOutput) ? &output : StartsWith(*variable, kRunAs) ? &user : NULL;
    if (own == NULL) {
      *kept++ = *variable;
    } else {
      free(*own);
      *own = *variable;
    }
  }
  *kept = NULL;
  int result = 0;
  /* The file is opened with the rights that the copy still has. */
  if (output != NULL) result = WriteTo(output + sizeof(kOutput) - 1, why, size);
  if (result == 0 && user != NULL) result = Become(user + sizeof(kRunAs) - 1, why, size);
  int error = errno;
  free(output);
  free(user);
  errno = error;
  return result;
}
