/* What Rekindle tells rekindle-criu-restore.so. Plain C. */
#ifndef REKINDLE_CRIU_USER_BOUNDS_H_
#define REKINDLE_CRIU_USER_BOUNDS_H_

/* In CRIU's environment: the path of a file "UID GID GROUP…\nFOLDER FOLDER…\n" that is there before CRIU is
 * told what to restore. No file: the job is root's. FOLDER: where file systems are mounted that are this
 * copy's alone. Behind the lines names of Unix sockets, each with a zero at its end: those that root may bind
 * for the user where he may not. */
#define USER_BOUNDS_VARIABLE "REKINDLE_USER_BOUNDS"

/* And, with any value: the job's files are opened also where a symbolic link that somebody else may have made
 * leads to them. */
#define ANY_LINKS_VARIABLE "REKINDLE_ANY_LINKS"

#endif
