// Between the parts of rekindle-criu-restore.so.
#pragma once

// A call of fcntl(). 1: it is one of those about an eventfd that is a semaphore, which sets or gets its
// flags; it is done, and `*result` is what it returns, with `errno`. 0: make the call.
int IsAboutSemaphore(int fd, int command, int flags, int* result);
