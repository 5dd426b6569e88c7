/* Opening a file by the name that it had, where somebody may have put a symbolic link in the way since. C,
 * and in rekindle-criu-restore.so as well as in Rekindle. */
#ifndef REKINDLE_CRIU_TRUSTED_LINKS_H_
#define REKINDLE_CRIU_TRUSTED_LINKS_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Opens `path`, which is looked up from the folder `root`, as openat() does. Symbolic links are followed only
 * where root or user `uid` made them, in folders that nobody else may change: all on the way to them are
 * owned by either, and others may not write to them, or not to what isn't theirs (sticky); a group may where
 * `uid` is not root, as users of clusters share folders. So what an administrator has moved is found, and
 * what a stranger has put there is not. What is on the way is held open, so that nobody can change it
 * meanwhile.
 *
 * A descriptor, or -1 with errno; ELOOP: another's link is on the way, or too many are. No O_CREAT. Neither
 * `path` nor a link may lead through /proc. Thread-safe. */
__attribute__((visibility("hidden"))) int OpenByTrustedLinks(int root, const char* path, int flags,
                                                             unsigned uid);

#ifdef __cplusplus
}
#endif

#endif
