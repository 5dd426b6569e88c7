/* The job's side of its file (proto/rekindle/v1/job_file.h): how far it is, and waiting for an image at a
 * step's boundary. Whatever fails here, fails in silence: a job must not die because nobody supervises it any
 * more. */
#include "proto/rekindle/v1/job_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hook/open_apart.h"
#include "hook/rekindle_hook.h"

static const int64_t kWritePause = 100 * 1000 * 1000;  /* ns between two writes of progress */
static const long kLookPause = 1000 * 1000;            /* ns between two looks while waiting */
static const int64_t kLongestLook = 100 * 1000 * 1000; /* ns; more than that it was frozen, or in an image */
static const double kPatience = 30;                    /* s, for an image at a boundary */
static const double kRateSeconds = 5;                  /* over which steps per second are smoothed */

enum { kLongestPath = 4096, kLooksOfAStep = 20 };

static struct {
  bool looked; /* for the path */
  char path[kLongestPath];
  uint64_t step, total, calls, boundaries; /* not yet written; the last two: since then */
  int64_t written_ns;                      /* on the coarse monotonic clock */
  uint64_t given_up;                       /* the image for which it has waited in vain */
  uint64_t given_up_in;                    /* `restored` then: numbers may begin anew with each restore */
} mine;

/* At a boundary, from one step of waiting to the next. */
static struct {
  bool going_on;
  uint64_t due;      /* the image; 0: the next one after `before` */
  uint64_t before;   /* the last one that was due when it came here */
  uint64_t restored; /* as it was then */
  uint64_t storing;  /* as it was at the last look */
  double waited;     /* s, since it began or the daemon has last said that it stores the image */
  int64_t looked;    /* ns */
  ino_t pid_namespace;
} wait;

/* Empty: nobody supervises this process. Kept, since the environment is the program's, and looking there
 * takes longer than all the rest of a call that writes nothing. */
static const char* Path(void) {
  if (!mine.looked) {
    const char* path = getenv(REKINDLE_JOB_FILE_VARIABLE);
    if (path != NULL && strlen(path) < sizeof(mine.path)) strcpy(mine.path, path);
    mine.looked = true;
  }
  return mine.path;
}

static int64_t Now(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The descriptor, or -1. */
static int Open(struct rekindle_job_file* file) {
  int fd = rekindle_open_apart(mine.path, O_RDWR | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return -1;
  if (pread(fd, file, sizeof(*file), 0) == sizeof(*file) && file->head.magic == REKINDLE_JOB_FILE_MAGIC &&
      file->head.version == REKINDLE_JOB_FILE_VERSION) {
    return fd;
  }
  close(fd);
  return -1;
}

static void Write(int fd, const struct rekindle_job_file_job* job) {
  /* Nobody to tell. */
  if (pwrite(fd, job, sizeof(*job), offsetof(struct rekindle_job_file, job)) < 0) return;
}

static double Rate(const struct rekindle_job_file_job* before, uint64_t step, int64_t unix_ns) {
  const double old =
      before->steps_per_second > 0 && before->steps_per_second < 1e15 ? before->steps_per_second : 0;
  if (before->unix_ns == 0 || step < before->step) return 0; /* it begins, or goes on from an image */
  if (step == before->step || unix_ns <= before->unix_ns) return old;
  const double seconds = (double)(unix_ns - before->unix_ns) / 1e9;
  const double now = (double)(step - before->step) / seconds;
  return old == 0 ? now : old + (now - old) * seconds / (seconds + kRateSeconds);
}

/* Adds what has come up since the last time. */
static void AddNews(struct rekindle_job_file_job* job) {
  if (mine.calls > 0) {
    const int64_t now = Now(CLOCK_REALTIME);
    job->steps_per_second = Rate(job, mine.step, now);
    job->step = mine.step;
    job->total = mine.total;
    job->unix_ns = now;
  }
  job->calls += mine.calls;
  job->boundaries += mine.boundaries;
  mine.calls = mine.boundaries = 0;
}

/* A clock that went back is another machine's, or another boot's. */
static bool TimeToWrite(void) {
  const int64_t now = Now(CLOCK_MONOTONIC_COARSE);
  if (mine.written_ns != 0 && now >= mine.written_ns && now - mine.written_ns < kWritePause) return false;
  mine.written_ns = now;
  return true;
}

static void WriteNews(int fd, struct rekindle_job_file* file) {
  AddNews(&file->job);
  Write(fd, &file->job);
}

void rekindle_progress(uint64_t step, uint64_t total) {
  if (Path()[0] == '\0') return;
  mine.step = step;
  mine.total = total;
  ++mine.calls;
  const bool last = total != 0 && step == total;
  if (!TimeToWrite() && !last) return;
  const int error = errno;
  struct rekindle_job_file file;
  const int fd = Open(&file);
  if (fd >= 0) {
    WriteNews(fd, &file);
    close(fd);
  }
  errno = error;
}

static double Patience(void) {
  const char* text = getenv("REKINDLE_BOUNDARY_SECONDS");
  char* end = NULL;
  const double seconds = text == NULL ? -1 : strtod(text, &end);
  return text != NULL && end != text && *end == '\0' && seconds >= 0 ? seconds : kPatience;
}

/* Is there an image that nobody has taken or given up? */
static bool IsDue(const struct rekindle_job_file_daemon* daemon) {
  const bool given_up = daemon->due == mine.given_up && daemon->restored == mine.given_up_in;
  return daemon->due > daemon->released && !given_up;
}

/* 0: not known. */
static ino_t PidNamespace(void) {
  struct stat info;
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

/* REKINDLE_INTERRUPTED: it waits from now on, as `wait` says. */
static enum rekindle_event Begin(bool force) {
  struct rekindle_job_file file;
  const int fd = Open(&file);
  if (fd < 0) return REKINDLE_NOT_HELD;
  ++mine.boundaries;
  const bool open_one = IsDue(&file.daemon);
  /* One that is due already must be stored then, too, before the job goes on. */
  if (force) ++file.job.wanted;
  if (TimeToWrite() || force || open_one) WriteNews(fd, &file);
  close(fd);
  if (!force && !open_one) return REKINDLE_NOT_HELD;
  wait.going_on = true;
  wait.due = open_one ? file.daemon.due : 0;
  wait.before = file.daemon.due;
  wait.restored = file.daemon.restored;
  wait.storing = file.daemon.storing;
  wait.waited = 0;
  wait.looked = Now(CLOCK_MONOTONIC);
  wait.pid_namespace = PidNamespace();
  return REKINDLE_INTERRUPTED;
}

/* REKINDLE_INTERRUPTED: there is no image yet. */
static enum rekindle_event Look(double patience) {
  struct rekindle_job_file file;
  const int fd = Open(&file);
  /* The daemon took it away; or this is a clone, which does not see it. */
  if (fd < 0) return PidNamespace() == wait.pid_namespace ? REKINDLE_NOT_HELD : REKINDLE_RESTORED;
  enum rekindle_event event = REKINDLE_INTERRUPTED;
  if (wait.due == 0 && file.daemon.due > wait.before) wait.due = file.daemon.due;
  if (file.daemon.storing != wait.storing) {
    wait.storing = file.daemon.storing;
    wait.waited = 0;
  }
  if (file.daemon.restored != wait.restored) {
    event = REKINDLE_RESTORED;
  } else if (wait.due != 0 && file.daemon.released >= wait.due) {
    event = file.daemon.taken >= wait.due ? REKINDLE_CONTINUED : REKINDLE_NOT_HELD;
  } else if (wait.waited >= patience) {
    mine.given_up = wait.due;
    mine.given_up_in = file.daemon.restored;
    event = REKINDLE_NOT_HELD;
  }
  const uint64_t says = event == REKINDLE_INTERRUPTED ? wait.due : 0;
  if (file.job.waiting != says) {
    file.job.waiting = says;
    Write(fd, &file.job);
  }
  close(fd);
  return event;
}

/* False: interrupted by a signal. */
static bool Pause(void) {
  const struct timespec pause = {0, kLookPause};
  const bool whole = nanosleep(&pause, NULL) == 0;
  /* Not by a point in time: this may be another boot when it goes on. */
  const int64_t now = Now(CLOCK_MONOTONIC);
  const int64_t passed = now - wait.looked;
  wait.waited += (double)(passed < 0 || passed > kLongestLook ? kLongestLook : passed) / 1e9;
  wait.looked = now;
  return whole;
}

static enum rekindle_event Boundary(bool force, bool whole) {
  enum rekindle_event event = wait.going_on ? REKINDLE_INTERRUPTED : Begin(force);
  const double patience = event == REKINDLE_INTERRUPTED ? Patience() : 0;
  for (int looks = 1; event == REKINDLE_INTERRUPTED; ++looks) {
    event = Look(patience);
    if (event != REKINDLE_INTERRUPTED) break;
    /* A signal that comes between two pauses interrupts none. */
    const bool interrupted = !Pause() || looks == kLooksOfAStep;
    if (interrupted && !whole) return REKINDLE_INTERRUPTED;
  }
  wait.going_on = false;
  return event;
}

static enum rekindle_event QuietBoundary(bool force, bool whole) {
  if (Path()[0] == '\0') return REKINDLE_NOT_HELD;
  const int error = errno;
  const enum rekindle_event event = Boundary(force, whole);
  errno = error;
  return event;
}

int rekindle_checkpoint_due(void) {
  if (Path()[0] == '\0') return 0;
  const int error = errno;
  struct rekindle_job_file file;
  const int fd = Open(&file);
  if (fd >= 0) close(fd);
  errno = error;
  return fd >= 0 && IsDue(&file.daemon);
}

enum rekindle_event rekindle_checkpoint_here(void) { return QuietBoundary(false, true); }

enum rekindle_event rekindle_checkpoint_now(void) { return QuietBoundary(true, true); }

enum rekindle_event rekindle_checkpoint_step(int force) { return QuietBoundary(force != 0, false); }

void rekindle_checkpoint_leave(void) {
  if (!wait.going_on) return;
  wait.going_on = false;
  const int error = errno;
  struct rekindle_job_file file;
  const int fd = Open(&file);
  if (fd >= 0) {
    file.job.waiting = 0;
    Write(fd, &file.job);
    close(fd);
  }
  errno = error;
}
