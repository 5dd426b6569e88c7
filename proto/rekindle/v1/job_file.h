/* The file through which a supervised job and the daemon talk: $REKINDLE_JOB_FILE of the job. Plain C, so
 * that the hook and the daemon share it.
 *
 * It has always this size, and three parts of 64 bytes, each written by one side alone and by one pwrite():
 * the head by the daemon when it makes the file, then the job's part, then the daemon's. Both sides open it
 * for each look, so that a job that stands still between two calls holds nothing of it. Numbers are in the
 * machine's byte order: it never leaves the machine. The processes of a job share one part; what another of
 * them wrote is kept, and when two write at once, the later one wins. Clones do not see it: it is that of the
 * job that their image was taken of. */
#ifndef REKINDLE_PROTO_REKINDLE_V1_JOB_FILE_H_
#define REKINDLE_PROTO_REKINDLE_V1_JOB_FILE_H_

#include <stdint.h>

#define REKINDLE_JOB_FILE_VARIABLE "REKINDLE_JOB_FILE"
#define REKINDLE_JOB_FILE_FOLDER "progress" /* of all of them, in the daemon's runtime folder */
#define REKINDLE_JOB_FILE_MAGIC UINT64_C(0x454c49464e4b524a) /* "JRKNFILE" */
#define REKINDLE_JOB_FILE_VERSION 1

struct rekindle_job_file_head {
  uint64_t magic;
  uint32_t version; /* a reader leaves a file of another version alone */
  uint32_t reserved_number;
  uint64_t reserved[6];
};

/* By the job. */
struct rekindle_job_file_job {
  uint64_t step;       /* as it says */
  uint64_t total;      /* 0: not said */
  int64_t unix_ns;     /* when it said that; 0: never */
  uint64_t calls;      /* of progress() */
  uint64_t boundaries; /* calls of checkpoint_here() */
  uint64_t waiting;    /* it waits at a boundary for the image with this number of `due`; 0: it does not */
  uint64_t wanted;     /* grows by one when it asks for an image itself */
  double steps_per_second; /* lately; 0: not known */
};

/* By the daemon. */
struct rekindle_job_file_daemon {
  uint64_t due;      /* grows by one when an image is due: the job is to wait at its next boundary */
  uint64_t released; /* the last `due` for which nobody needs to wait any more */
  uint64_t taken;    /* the last `due` of which there is an image */
  uint64_t restored; /* another, larger number each time the job is brought back */
  uint64_t storing;  /* grows each second while an image that is waited for is being stored */
  uint64_t reserved[3];
};

struct rekindle_job_file {
  struct rekindle_job_file_head head;
  struct rekindle_job_file_job job;
  struct rekindle_job_file_daemon daemon;
};

#endif /* REKINDLE_PROTO_REKINDLE_V1_JOB_FILE_H_ */
