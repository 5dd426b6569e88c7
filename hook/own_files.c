#include "hook/own_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct open_file {
  int fd;
  dev_t device;
  ino_t inode;
  size_t first; /* the first of the list that has the same description */
  bool shared;  /* with standard output or error */
};

int rekindle_reopen_flags(int status_flags) {
  return (status_flags & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_SYNC | O_DSYNC | O_NOATIME)) |
         O_CLOEXEC | O_NOCTTY;
}

static bool SameDescription(int a, int b) {
  pid_t self = getpid();
  return syscall(SYS_kcmp, self, self, KCMP_FILE, a, b) == 0;
}

static bool Describe(int fd, struct open_file* file) {
  struct stat status;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || fstat(fd, &status) < 0) return false;
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return false;
  *file = (struct open_file){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
  return true;
}

static struct open_file* List(int proc, const int* ours, size_t our_count, size_t* count) {
  struct open_file* files = NULL;
  size_t room = 0;
  *count = 0;
  int folder = openat(proc, "self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* open_files = folder < 0 ? NULL : fdopendir(folder);
  if (open_files == NULL) {
    if (folder >= 0) close(folder);
    return NULL;
  }
  for (struct dirent* entry; (entry = readdir(open_files)) != NULL;) {
    int fd = atoi(entry->d_name);
    bool own = entry->d_name[0] == '.' || fd == folder;
    for (size_t i = 0; i < our_count; ++i) own = own || fd == ours[i];
    struct open_file file;
    if (own || !Describe(fd, &file)) continue;
    if (*count == room) {
      room = room == 0 ? 32 : room * 2;
      struct open_file* grown = realloc(files, room * sizeof(*files));
      if (grown == NULL) break;
      files = grown;
    }
    file.first = *count;
    files[(*count)++] = file;
  }
  closedir(open_files);
  return files;
}

static void FindSharing(struct open_file* files, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (files[j].first != j || files[i].device != files[j].device || files[i].inode != files[j].inode)
        continue;
      if (!SameDescription(files[i].fd, files[j].fd)) continue;
      files[i].first = j;
      break;
    }
    if (files[i].fd == STDOUT_FILENO || files[i].fd == STDERR_FILENO) files[files[i].first].shared = true;
  }
}

static void OpenAgain(int proc, int fd) {
  char name[32];
  snprintf(name, sizeof(name), "self/fd/%d", fd);
  off_t offset = lseek(fd, 0, SEEK_CUR);
  int own = openat(proc, name, rekindle_reopen_flags(fcntl(fd, F_GETFL)));
  if (own < 0) return;
  if (offset <= 0 || lseek(own, offset, SEEK_SET) == offset) {
    dup3(own, fd, (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  }
  close(own);
}

void rekindle_own_files(int proc, const int* ours, size_t our_count) {
  size_t count;
  struct open_file* files = List(proc, ours, our_count, &count);
  FindSharing(files, count);
  for (size_t i = 0; i < count; ++i) {
    const struct open_file* file = &files[i];
    if (files[file->first].shared) continue;
    if (file->first == i) {
      OpenAgain(proc, file->fd);
    } else {
      dup3(files[file->first].fd, file->fd, (fcntl(file->fd, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
    }
  }
  free(files);
}
