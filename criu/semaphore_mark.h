// How an image tells an eventfd that is a semaphore (EFD_SEMAPHORE): CRIU's images have no place for that,
// and it comes back as a plain counter, of which one read() takes all. The descriptor has O_APPEND there,
// which means nothing for an eventfd and does no harm to one that stock CRIU restores; no other eventfd has
// it.
#pragma once

#include <fcntl.h>

#define SEMAPHORE_MARK O_APPEND
