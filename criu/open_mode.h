/* For libraries that stand before the C library's open(): its last argument, which is not always there. */
#ifndef REKINDLE_CRIU_OPEN_MODE_H_
#define REKINDLE_CRIU_OPEN_MODE_H_

#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

/* Declares `mode`; `flags` is the last named argument. */
#define MODE_ARGUMENT(flags)                                        \
  mode_t mode = 0;                                                  \
  if (((flags)&O_CREAT) != 0 || ((flags)&O_TMPFILE) == O_TMPFILE) { \
    va_list rest;                                                   \
    va_start(rest, flags);                                          \
    mode = va_arg(rest, mode_t);                                    \
    va_end(rest);                                                   \
  }

/* Defines all of them by Open(at, path, flags, mode). */
#define OPENS_BY(Open)                                      \
  int open(const char* path, int flags, ...) {              \
    MODE_ARGUMENT(flags)                                    \
    return Open(AT_FDCWD, path, flags, mode);               \
  }                                                         \
  int open64(const char* path, int flags, ...) {            \
    MODE_ARGUMENT(flags)                                    \
    return Open(AT_FDCWD, path, flags | O_LARGEFILE, mode); \
  }                                                         \
  int openat(int at, const char* path, int flags, ...) {    \
    MODE_ARGUMENT(flags)                                    \
    return Open(at, path, flags, mode);                     \
  }                                                         \
  int openat64(int at, const char* path, int flags, ...) {  \
    MODE_ARGUMENT(flags)                                    \
    return Open(at, path, flags | O_LARGEFILE, mode);       \
  }

#endif
