/* Pages that a process will need: mapped, and made its own where it writes to them, in a few system calls
 * instead of a fault for each. */
#ifndef REKINDLE_HOOK_TOUCH_PAGES_H_
#define REKINDLE_HOOK_TOUCH_PAGES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the file `list` has, one after the other: whole pages from `start` to before `end`. In the lowest bit
 * of `end`: whether they are to be the process's own. Ranges that are not mapped like that are left out. */
struct rekindle_touched_range {
  uint64_t start, end;
};

/* Allocates nothing. Takes no time-out, and no errors: a page that is not touched here is so later. */
void rekindle_touch_pages(int list);

#ifdef __cplusplus
}
#endif

#endif /* REKINDLE_HOOK_TOUCH_PAGES_H_ */
