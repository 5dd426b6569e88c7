/* Rekindle's runtime hook: what a program calls to be held when it is ready, and to learn that it woke up as
 * a copy. Plain C, no dependency but libc. docs/hook.md is the users' page.
 *
 *   static void reconnect(void* pool) { ... }
 *   int main(void) {
 *     load_everything();
 *     rekindle_register_after_restore(reconnect, &pool);
 *     if (rekindle_ready(NULL) == REKINDLE_ERROR) errx(1, "%s", rekindle_error());
 *     serve();
 *   }
 *
 * The library keeps one state for the process and takes no lock: call it from one thread at a time. */
#ifndef REKINDLE_HOOK_REKINDLE_HOOK_H_
#define REKINDLE_HOOK_REKINDLE_HOOK_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define REKINDLE_API __attribute__((visibility("default")))
#else
#define REKINDLE_API
#endif

/* The control channel, an AF_UNIX SOCK_SEQPACKET socket. While the process is parked both ends are its own:
 * it waits on the first, and whoever holds it takes the second (pidfd_getfd). */
#define REKINDLE_CONTROL_FD 1000
#define REKINDLE_PEER_FD 1001
/* A message is one JSON object in one packet of at most this many bytes. */
#define REKINDLE_MESSAGE_LIMIT 65536

enum rekindle_event {
  REKINDLE_ERROR = -1,   /* errno is set, rekindle_error() says more */
  REKINDLE_NOT_HELD = 0, /* nobody wants it held (see rekindle_held()): nothing was done */
  REKINDLE_CONTINUED,    /* was parked, and goes on as the process that it was */
  REKINDLE_RESTORED,     /* woke up as a copy: see struct rekindle_restored */
  /* These come from the single steps below, never from rekindle_ready(). */
  REKINDLE_TEMPLATE,    /* woke up as a template */
  REKINDLE_FORK,        /* a copy is asked for, and fork is safe */
  REKINDLE_FORKED,      /* still the template: the request was answered */
  REKINDLE_CLOSED,      /* the other end of the channel is gone */
  REKINDLE_INTERRUPTED, /* by a signal: call again */
};

/* Who this copy is. The strings belong to the library and stay until the next rekindle_ready(). */
struct rekindle_restored {
  const char* instance;
  const char* name;
  const char* const* environment; /* "K=V", already applied by setenv(); a null pointer last */
};

typedef void (*rekindle_callback)(void* argument);

/* Functions to be called before the process parks (last registered first) and after it woke up as a copy
 * (first registered first; not when it merely continues). 0, or -1 with errno ENOMEM. */
REKINDLE_API int rekindle_register_before_snapshot(rekindle_callback function, void* argument);
REKINDLE_API int rekindle_register_after_restore(rekindle_callback function, void* argument);

/* Parks the process until it is woken, in place or as any number of copies. One of REKINDLE_NOT_HELD,
 * REKINDLE_CONTINUED, REKINDLE_RESTORED (then `out`, unless null, is filled) and REKINDLE_ERROR. In a
 * template it returns in the copies alone; the template itself ends inside. */
REKINDLE_API enum rekindle_event rekindle_ready(struct rekindle_restored* out);

/* For a job that Rekindle supervises (`rekindle run --restarts ...`); elsewhere these do nothing and return
 * at once. They fail in silence: nothing that happens to the daemon harms the job. No registered function is
 * called and nothing is renewed: a job that is brought back goes on exactly where it was.
 *
 * How far it is: `total` is 0 where that is not known. To be called at each step, as often as it likes: what
 * is said is written at most every 100 ms, and at the last step. */
REKINDLE_API void rekindle_progress(uint64_t step, uint64_t total);
/* A good moment for an image, such as the end of a step. Returns REKINDLE_NOT_HELD at once unless an image is
 * due; else it waits until that has all of the job's memory: REKINDLE_CONTINUED, or REKINDLE_RESTORED in the
 * job that was brought back from it. The image is stored while the job goes on. Where no image comes within
 * 30 seconds (REKINDLE_BOUNDARY_SECONDS in the environment), or the daemon gives it up: REKINDLE_NOT_HELD. */
REKINDLE_API enum rekindle_event rekindle_checkpoint_here(void);
/* 1 when rekindle_checkpoint_here() would wait now. The moment to let go of what need not be in an image,
 * such as caches and memory that an allocator keeps for later, on a GPU above all. */
REKINDLE_API int rekindle_checkpoint_due(void);
/* As rekindle_checkpoint_here(), but asks for an image where none is due, and REKINDLE_CONTINUED says that it
 * is stored. As long as the daemon says that it is storing the image, those 30 seconds begin anew. */
REKINDLE_API enum rekindle_event rekindle_checkpoint_now(void);

/* What went wrong last, for people. Never null. */
REKINDLE_API const char* rekindle_error(void);

/* Who this copy is, or null in a process that is none. */
REKINDLE_API const struct rekindle_restored* rekindle_instance(void);

/* The descriptor of this copy's channel (REKINDLE_CONTROL_FD), or -1 when it has none. */
REKINDLE_API int rekindle_channel(void);

/* Sends one message on it. 0, or -1 with errno: ENOTCONN (no channel), EMSGSIZE, or send()'s. */
REKINDLE_API int rekindle_send(const char* text);

/* 1 and the reason in `why` when this process can't be copied by fork, so can't be a template; else 0. `why`
 * is cut to `size` bytes. */
REKINDLE_API int rekindle_unsafe_to_fork(char* why, size_t size);

/* The single steps of rekindle_ready(), for languages whose runtime has to do something in between:
 *
 *   if (!rekindle_held()) return;
 *   rekindle_run_before_snapshot();
 *   rekindle_park();
 *   event = rekindle_wait();                            again while REKINDLE_INTERRUPTED
 *   while (event == REKINDLE_TEMPLATE) {
 *     if (rekindle_next_request() == REKINDLE_FORK)      REKINDLE_CLOSED: the template has to _exit(0)
 *       if (rekindle_fork_child() == REKINDLE_RESTORED) event = REKINDLE_RESTORED;   this is the copy
 *   }
 *   if (event == REKINDLE_RESTORED) {
 *     rekindle_renew();
 *     rekindle_run_after_restore();
 *     rekindle_up();
 *   } */
/* 1 where REKINDLE_HOLD is "1" in the environment, and from then on in this process: parking takes the
 * variable out of the environment, so that programs which this one starts are not held. */
REKINDLE_API int rekindle_held(void);
REKINDLE_API void rekindle_run_before_snapshot(void);
/* Whether that runtime has functions of its own to call in each copy, which the library knows nothing of. To
 * be said before each rekindle_park(). */
REKINDLE_API void rekindle_has_after_restore(int has);
/* 0 or -1. When this copy has a channel, {"type":"ready","after_restore":N} is sent on it and it is closed
 * once the process is parked again. N: 1 when there are functions to be called in each copy, else 0. */
REKINDLE_API int rekindle_park(void);
/* REKINDLE_CONTINUED, _RESTORED, _TEMPLATE, _INTERRUPTED or _ERROR (then the process is no longer parked). */
REKINDLE_API enum rekindle_event rekindle_wait(void);
/* Gives up being parked, for a caller that was interrupted and does not want to wait any more. */
REKINDLE_API void rekindle_unpark(void);
/* REKINDLE_FORK, _CLOSED or _INTERRUPTED. Requests that can't be met are answered inside. The first call
 * tells the other side that the template is up, or why it can't be one. */
REKINDLE_API enum rekindle_event rekindle_next_request(void);
/* To be called once after each REKINDLE_FORK. Returns twice: REKINDLE_RESTORED in the copy, REKINDLE_FORKED
 * in the template. Calls fork(), so pthread_atfork's handlers run. */
REKINDLE_API enum rekindle_event rekindle_fork_child(void);
/* The two above, again and again, where a runtime has nothing to do in between. Returns in the copies alone;
 * the template itself ends inside. */
REKINDLE_API enum rekindle_event rekindle_serve_as_template(void);
/* Feeds fresh random bytes to every libcrypto that was loaded when the process parked. */
REKINDLE_API void rekindle_renew(void);
REKINDLE_API void rekindle_run_after_restore(void);
/* Tells the other side that this copy runs. */
REKINDLE_API void rekindle_up(void);

/* rekindle_checkpoint_here(), with `force` rekindle_checkpoint_now(), for languages whose handlers of signals
 * run only between two calls: REKINDLE_INTERRUPTED every few milliseconds while it waits, and after a signal.
 * Call it again then, or give up waiting by the other. */
REKINDLE_API enum rekindle_event rekindle_checkpoint_step(int force);
REKINDLE_API void rekindle_checkpoint_leave(void);

#ifdef __cplusplus
}
#endif

#endif /* REKINDLE_HOOK_REKINDLE_HOOK_H_ */
