/* What a copy does with itself when it wakes up, before any code of its program runs. */
#ifndef REKINDLE_HOOK_WAKING_H_
#define REKINDLE_HOOK_WAKING_H_

#include <stddef.h>

/* Takes those variables ("NAME=value") out of the list that ends with a null pointer which are meant for the
 * hook alone, frees them, and acts on them:
 *   REKINDLE_OUTPUT=PATH              standard output and error go to that file from now on, at its end
 *   REKINDLE_RUN_AS=UID:GID[:GID,…]   gives up root's rights for those of that user with these further groups
 * 0, or -1 with errno and the reason in `why`. */
int rekindle_act_on_waking(char** environment, char* why, size_t size);

#endif /* REKINDLE_HOOK_WAKING_H_ */
