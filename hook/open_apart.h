/* Opening files in a program that is not ours: it may have closed its standard input, output or error, and
 * write to that number all the same, from another thread. */
#ifndef REKINDLE_HOOK_OPEN_APART_H_
#define REKINDLE_HOOK_OPEN_APART_H_

/* As open() with O_CLOEXEC, but never the number of standard input, output or error. -1 with errno. */
int rekindle_open_apart(const char* path, int flags);

#endif /* REKINDLE_HOOK_OPEN_APART_H_ */
