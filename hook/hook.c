#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "hook/birth.h"
#include "hook/fork_safety.h"
#include "hook/json.h"
#include "hook/own_files.h"
#include "hook/packet.h"
#include "hook/rekindle_hook.h"
#include "hook/touch_pages.h"
#include "hook/waking.h"

enum { kLongestInstance = 256, kLongestWhy = 2048 }; /* with the NUL */
enum { kMostLibcryptos = 8 };

static const char kHold[] = "REKINDLE_HOLD";
static const char kTimeZone[] = "TZ";

typedef void (*openssl_rand_add)(const void* bytes, int count, double entropy);

struct callback {
  rekindle_callback function;
  void* argument;
};

struct callbacks {
  struct callback* list;
  size_t count;
};

struct identity {
  char* instance;
  char* name;
  char** environment;
};

static struct {
  struct callbacks before_snapshot, after_restore;
  pid_t holder;          /* the process that was held, if this or its parent was */
  bool parked;           /* both descriptors are ours */
  bool channel_open;     /* the first one leads to somebody else */
  bool renews_elsewhere; /* rekindle_has_after_restore() */
  bool is_copy;
  bool announced; /* the template has said whether it is one */
  bool safe;      /* it is one */
  struct identity self;
  struct identity child;          /* of the request being served */
  bool child_waits;               /* the same: for a second message, before it goes on */
  bool child_touches;             /* the same: its last descriptor lists pages */
  struct rekindle_packet* packet; /* from parking to waking; in a template, always */
  struct rekindle_restored restored;
  openssl_rand_add openssl_add[kMostLibcryptos];
  size_t openssl_count;
  char error[512];
} state;

/* -1, so that callers can return it. */
__attribute__((format(printf, 2, 3))) static int Fail(int error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(state.error, sizeof(state.error), format, arguments);
  va_end(arguments);
  errno = error;
  return -1;
}

const char* rekindle_error(void) { return state.error; }

static int Register(struct callbacks* callbacks, rekindle_callback function, void* argument) {
  struct callback* grown = realloc(callbacks->list, (callbacks->count + 1) * sizeof(*grown));
  if (grown == NULL) return Fail(ENOMEM, "out of memory");
  callbacks->list = grown;
  grown[callbacks->count++] = (struct callback){function, argument};
  return 0;
}

int rekindle_register_before_snapshot(rekindle_callback function, void* argument) {
  return Register(&state.before_snapshot, function, argument);
}

int rekindle_register_after_restore(rekindle_callback function, void* argument) {
  return Register(&state.after_restore, function, argument);
}

void rekindle_has_after_restore(int has) { state.renews_elsewhere = has != 0; }

void rekindle_run_before_snapshot(void) {
  for (size_t i = state.before_snapshot.count; i-- > 0;) {
    struct callback* callback = &state.before_snapshot.list[i];
    callback->function(callback->argument);
  }
}

void rekindle_run_after_restore(void) {
  for (size_t i = 0; i < state.after_restore.count; ++i) {
    struct callback* callback = &state.after_restore.list[i];
    callback->function(callback->argument);
  }
}

/* What the environment asks is meant for this process, not for those that it starts. */
static void Hold(void) {
  state.holder = getpid();
  unsetenv(kHold);
}

int rekindle_held(void) {
  if (state.holder == getpid()) return 1;
  const char* hold = getenv(kHold);
  return hold != NULL && strcmp(hold, "1") == 0;
}

const struct rekindle_restored* rekindle_instance(void) { return state.is_copy ? &state.restored : NULL; }

int rekindle_channel(void) { return state.channel_open ? REKINDLE_CONTROL_FD : -1; }

int rekindle_send(const char* text) {
  size_t length = strlen(text);
  if (!state.channel_open) return Fail(ENOTCONN, "this process has no control channel: it was not restored");
  if (length == 0 || length > REKINDLE_MESSAGE_LIMIT) {
    return Fail(EMSGSIZE, "a message has 1 to %d bytes, this one has %zu", REKINDLE_MESSAGE_LIMIT, length);
  }
  if (rekindle_packet_send(REKINDLE_CONTROL_FD, text, length) == 0) return 0;
  int error = errno;
  return Fail(error, "sending on the control channel (descriptor %d): %s", REKINDLE_CONTROL_FD,
              strerror(error));
}

/* What this process tells the other side by itself matters to that side alone: if it is gone, so be it. */
static void Tell(struct rekindle_json_writer* writer) {
  if (rekindle_json_end(writer) > 0)
    rekindle_packet_send(REKINDLE_CONTROL_FD, writer->at, strlen(writer->at));
}

static void FreeIdentity(struct identity* identity) {
  free(identity->instance);
  free(identity->name);
  if (identity->environment != NULL) {
    for (char** variable = identity->environment; *variable != NULL; ++variable) free(*variable);
  }
  free(identity->environment);
  *identity = (struct identity){0};
}

/* From a message with instance, name and environment. */
static int ReadIdentity(const struct rekindle_json* message, struct identity* identity) {
  FreeIdentity(identity);
  const struct rekindle_json_member* environment =
      rekindle_json_find(message, "environment", REKINDLE_JSON_OBJECT);
  size_t count = environment == NULL ? 0 : environment->count;
  if (strlen(rekindle_json_string(message, "instance", "")) >= kLongestInstance) {
    return Fail(EBADMSG, "the instance's name is longer than %d bytes", kLongestInstance - 1);
  }
  identity->instance = strdup(rekindle_json_string(message, "instance", ""));
  identity->name = strdup(rekindle_json_string(message, "name", ""));
  identity->environment = calloc(count + 1, sizeof(char*));
  bool whole = identity->instance != NULL && identity->name != NULL && identity->environment != NULL;
  for (size_t i = 0; whole && i < count; ++i) {
    const struct rekindle_json_member* variable = &message->nested[environment->first + i];
    if (variable->name[0] == '\0' || strchr(variable->name, '=') != NULL) {
      FreeIdentity(identity);
      return Fail(EBADMSG, "\"%s\" is no name for an environment variable", variable->name);
    }
    size_t size = strlen(variable->name) + strlen(variable->string) + 2;
    identity->environment[i] = malloc(size);
    whole = identity->environment[i] != NULL;
    if (whole) snprintf(identity->environment[i], size, "%s=%s", variable->name, variable->string);
  }
  if (whole) return 0;
  FreeIdentity(identity);
  return Fail(ENOMEM, "out of memory");
}

/* Of a copy that can't be who it is to be. */
static _Noreturn void Leave(const char* why) {
  dprintf(STDERR_FILENO, "rekindle: this copy ends: %s\n", why);
  _exit(1);
}

static int Adopt(struct identity* identity) {
  FreeIdentity(&state.self);
  state.self = *identity;
  *identity = (struct identity){0};
  state.is_copy = true;
  state.restored = (struct rekindle_restored){state.self.instance, state.self.name,
                                              (const char* const*)state.self.environment};
  char why[256];
  /* It may still be root, and must not run as that. */
  if (rekindle_act_on_waking(state.self.environment, why, sizeof(why)) < 0) Leave(why);
  bool other_time_zone = false;
  for (char** variable = state.self.environment; *variable != NULL; ++variable) {
    char* value = strchr(*variable, '=');
    *value = '\0';
    int failed = setenv(*variable, value + 1, 1);
    other_time_zone |= strcmp(*variable, kTimeZone) == 0;
    *value = '=';
    if (failed != 0) return Fail(errno, "setting %s: %s", *variable, strerror(errno));
  }
  if (other_time_zone) tzset();
  return 0;
}

static int RaiseDescriptorLimit(void) {
  /* The two, room above them while they are made, and for the channel that ends with that. */
  enum { kNeeded = REKINDLE_PEER_FD + 4 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
    return Fail(errno, "getrlimit(RLIMIT_NOFILE): %s", strerror(errno));
  if (limit.rlim_cur >= kNeeded) return 0;
  if (limit.rlim_max < kNeeded) {
    return Fail(
        EMFILE,
        "the control channel needs descriptors %d and %d, and this process may open %llu at most: raise the "
        "hard limit (ulimit -Hn) to %d or more",
        REKINDLE_CONTROL_FD, REKINDLE_PEER_FD, (unsigned long long)limit.rlim_max, kNeeded);
  }
  limit.rlim_cur = kNeeded;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return 0;
  return Fail(errno, "raising the limit of open files to %d: %s", kNeeded, strerror(errno));
}

/* Another descriptor for the same file, above those of the channel; the first is closed. */
static int MoveAside(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, REKINDLE_PEER_FD + 1);
  int error = errno;
  close(fd);
  errno = error;
  return moved;
}

static int PlaceEnds(void) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return -1;
  int first = MoveAside(ends[0]);
  int second = MoveAside(ends[1]);
  int result = -1;
  /* The peer comes last: where it is, the process is parked. */
  if (first >= 0 && second >= 0 && dup3(first, REKINDLE_CONTROL_FD, O_CLOEXEC) >= 0) {
    result = dup3(second, REKINDLE_PEER_FD, O_CLOEXEC);
  }
  int error = errno;
  if (first >= 0) close(first);
  if (second >= 0) close(second);
  errno = error;
  return result < 0 ? -1 : 0;
}

struct libraries {
  char* paths[kMostLibcryptos];
  size_t count;
};

static int CollectLibcrypto(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  struct libraries* found = data;
  const char* name = strrchr(object->dlpi_name, '/');
  if (name == NULL || strncmp(name, "/libcrypto", 10) != 0) return 0;
  found->paths[found->count] = strdup(object->dlpi_name);
  if (found->paths[found->count] != NULL) ++found->count;
  return found->count == kMostLibcryptos;
}

/* OpenSSL notices a fork by the PID, which a copy in its own PID namespace has in common with the template,
 * and a restore not at all. Looked for before parking: in a copy, each page that the search touches costs a
 * fault. */
static void FindLibcryptos(void) {
  struct libraries found = {0};
  dl_iterate_phdr(CollectLibcrypto, &found);
  state.openssl_count = 0;
  for (size_t i = 0; i < found.count; ++i) {
    void* library = dlopen(found.paths[i], RTLD_NOLOAD | RTLD_LAZY);
    free(found.paths[i]);
    if (library == NULL) continue;
    openssl_rand_add add;
    *(void**)&add = dlsym(library, "RAND_add");
    dlclose(library);
    if (add != NULL) state.openssl_add[state.openssl_count++] = add;
  }
}

int rekindle_park(void) {
  if (state.parked) return Fail(EALREADY, "this process is parked already");
  Hold();
  if (RaiseDescriptorLimit() < 0) return -1;
  for (int fd = REKINDLE_CONTROL_FD; fd <= REKINDLE_PEER_FD; ++fd) {
    bool own = fd == REKINDLE_CONTROL_FD && state.channel_open;
    if (!own && fcntl(fd, F_GETFD) >= 0) {
      return Fail(EBUSY, "the program uses descriptor %d, which Rekindle needs for its control channel", fd);
    }
  }
  if (state.packet == NULL) state.packet = malloc(sizeof(*state.packet));
  if (state.packet == NULL) return Fail(ENOMEM, "out of memory");
  int old_channel = -1;
  if (state.channel_open) {
    char text[64];
    struct rekindle_json_writer writer;
    rekindle_json_begin(&writer, text, sizeof(text));
    rekindle_json_add_string(&writer, "type", "ready");
    rekindle_json_add_number(&writer, "after_restore",
                             state.after_restore.count > 0 || state.renews_elsewhere);
    Tell(&writer);
    /* Its end tells the other side that the process is parked, so it has to come last. */
    old_channel = fcntl(REKINDLE_CONTROL_FD, F_DUPFD_CLOEXEC, REKINDLE_PEER_FD + 1);
  }
  state.channel_open = false;
  state.announced = false;
  FindLibcryptos();
  int result = PlaceEnds();
  int error = errno;
  state.parked = true;
  if (result < 0) {
    rekindle_unpark();
    Fail(error, "making the control channel: %s", strerror(error));
  }
  if (old_channel >= 0) close(old_channel);
  errno = error;
  return result;
}

void rekindle_unpark(void) {
  if (!state.parked) return;
  state.parked = false;
  close(REKINDLE_CONTROL_FD);
  close(REKINDLE_PEER_FD);
  free(state.packet);
  state.packet = NULL;
}

static enum rekindle_event BadWaking(const char* why) {
  rekindle_unpark();
  Fail(EBADMSG, "this process was woken with a message that it does not understand: %s", why);
  return REKINDLE_ERROR;
}

static bool IsTrue(const struct rekindle_json* message, const char* name) {
  const struct rekindle_json_member* member = rekindle_json_find(message, name, REKINDLE_JSON_BOOLEAN);
  return member != NULL && member->truth;
}

static enum rekindle_event WakeAsCopy(const struct rekindle_json* message) {
  bool wanted_as_template = IsTrue(message, "template");
  struct identity identity = {0};
  if (ReadIdentity(message, &identity) < 0) {
    char why[256];
    snprintf(why, sizeof(why), "%.200s", state.error);
    return BadWaking(why);
  }
  /* Both descriptors are one socket now, or the outside has the second. */
  close(REKINDLE_PEER_FD);
  state.parked = false;
  state.channel_open = true;
  if (!wanted_as_template) {
    free(state.packet);
    state.packet = NULL;
  }
  if (Adopt(&identity) < 0) return REKINDLE_ERROR;
  return wanted_as_template ? REKINDLE_TEMPLATE : REKINDLE_RESTORED;
}

enum rekindle_event rekindle_wait(void) {
  if (!state.parked) return Fail(EINVAL, "this process is not parked"), REKINDLE_ERROR;
  struct rekindle_packet* packet = state.packet;
  if (rekindle_packet_receive(REKINDLE_CONTROL_FD, packet) < 0) {
    if (errno == EINTR) return REKINDLE_INTERRUPTED;
    if (errno != ECONNRESET) return BadWaking(strerror(errno));
    packet->length = 0;
  }
  rekindle_packet_close_descriptors(packet);
  if (packet->length == 0) {
    rekindle_unpark();
    return REKINDLE_CONTINUED;
  }
  struct rekindle_json message;
  char why[160];
  if (rekindle_json_parse(packet->text, packet->length, &message, why, sizeof(why)) < 0)
    return BadWaking(why);
  const char* type = rekindle_json_string(&message, "type", "");
  enum rekindle_event event;
  if (strcmp(type, "continue") == 0) {
    rekindle_unpark();
    event = REKINDLE_CONTINUED;
  } else if (strcmp(type, "restored") == 0) {
    event = WakeAsCopy(&message);
  } else {
    snprintf(why, sizeof(why), "its type is \"%.64s\"", type);
    event = BadWaking(why);
  }
  rekindle_json_free(&message);
  return event;
}

static void Refuse(const char* instance, const char* why) {
  char text[6 * (kLongestWhy + kLongestInstance) + 64]; /* a control character takes six bytes */
  struct rekindle_json_writer writer;
  rekindle_json_begin(&writer, text, sizeof(text));
  rekindle_json_add_string(&writer, "type", "refused");
  rekindle_json_add_string(&writer, "instance", instance);
  rekindle_json_add_string(&writer, "why", why);
  Tell(&writer);
}

/* The descriptors that are ours: the channel, and those of the request being served. */
static size_t OwnDescriptors(int* own) {
  size_t count = 0;
  if (state.parked || state.channel_open) own[count++] = REKINDLE_CONTROL_FD;
  if (state.parked) own[count++] = REKINDLE_PEER_FD;
  if (state.packet != NULL && !state.parked) {
    for (size_t i = 0; i < state.packet->descriptor_count; ++i) own[count++] = state.packet->descriptors[i];
  }
  return count;
}

int rekindle_unsafe_to_fork(char* why, size_t size) {
  int own[REKINDLE_MOST_DESCRIPTORS + 2];
  size_t count = OwnDescriptors(own);
  return rekindle_fork_is_safe(own, count, why, size) ? 0 : 1;
}

static void SayUp(bool as_template) {
  char text[64];
  struct rekindle_json_writer writer;
  rekindle_json_begin(&writer, text, sizeof(text));
  rekindle_json_add_string(&writer, "type", "up");
  rekindle_json_add_number(&writer, "pid", getpid());
  if (as_template) rekindle_json_add_number(&writer, "version", 2);
  Tell(&writer);
}

static void Announce(void) {
  char why[kLongestWhy];
  state.announced = true;
  state.safe = !rekindle_unsafe_to_fork(why, sizeof(why));
  if (state.safe) {
    SayUp(true);
  } else {
    Refuse(state.self.instance, why);
  }
}

/* True when the request in state.packet can be met; else it was answered. */
static bool TakeRequest(void) {
  struct rekindle_packet* packet = state.packet;
  struct rekindle_json message;
  char why[kLongestWhy];
  if (rekindle_json_parse(packet->text, packet->length, &message, why, sizeof(why)) < 0) {
    Refuse("", why);
    return false;
  }
  char instance[kLongestInstance];
  snprintf(instance, sizeof(instance), "%s", rekindle_json_string(&message, "instance", ""));
  bool good = false;
  state.child_waits = IsTrue(&message, "wait");
  state.child_touches = IsTrue(&message, "touch");
  if (strcmp(rekindle_json_string(&message, "type", ""), "fork") != 0) {
    snprintf(why, sizeof(why), "a template knows requests of type \"fork\" only, not \"%.64s\"",
             rekindle_json_string(&message, "type", ""));
  } else if (packet->descriptor_count < (state.child_touches ? 3 : 2)) {
    snprintf(
        why, sizeof(why),
        "a fork request carries two descriptors or more (pidfd of the sandbox's init, channel, cgroup.procs "
        "files, with \"touch\" a list of pages), this one %zu",
        packet->descriptor_count);
  } else if (ReadIdentity(&message, &state.child) < 0) {
    snprintf(why, sizeof(why), "%s", state.error);
  } else {
    int own[REKINDLE_MOST_DESCRIPTORS + 2];
    size_t count = OwnDescriptors(own);
    good = state.safe ? rekindle_fork_is_still_safe(own, count, why, sizeof(why))
                      : rekindle_fork_is_safe(own, count, why, sizeof(why));
  }
  if (!good) Refuse(instance, why);
  rekindle_json_free(&message);
  return good;
}

enum rekindle_event rekindle_next_request(void) {
  struct rekindle_packet* packet = state.packet;
  if (packet == NULL || !state.channel_open) return REKINDLE_CLOSED;
  if (!state.announced) Announce();
  for (;;) {
    if (rekindle_packet_receive(REKINDLE_CONTROL_FD, packet) < 0) {
      if (errno == EINTR) return REKINDLE_INTERRUPTED;
      if (errno != EMSGSIZE) return REKINDLE_CLOSED;
      Refuse("", "the request is longer than 64 KiB or carries too many descriptors");
      continue;
    }
    if (packet->length == 0) return REKINDLE_CLOSED;
    if (TakeRequest()) return REKINDLE_FORK;
    rekindle_packet_close_descriptors(packet);
  }
}

/* In a copy that is made before anybody wants it: until somebody does, and says who it is. */
static int WaitToBeWanted(void) {
  struct rekindle_packet* packet = state.packet;
  char text[32];
  struct rekindle_json_writer writer;
  rekindle_json_begin(&writer, text, sizeof(text));
  rekindle_json_add_string(&writer, "type", "waiting");
  Tell(&writer);
  while (rekindle_packet_receive(REKINDLE_CONTROL_FD, packet) < 0) {
    if (errno == ECONNRESET) _exit(0); /* as at the end, which this is */
    if (errno != EINTR) return Fail(errno, "waiting on the control channel: %s", strerror(errno));
  }
  rekindle_packet_close_descriptors(packet);
  if (packet->length == 0) _exit(0); /* nobody does */
  struct rekindle_json message;
  char why[160];
  if (rekindle_json_parse(packet->text, packet->length, &message, why, sizeof(why)) < 0) {
    return Fail(EBADMSG, "this copy was woken with a message that it does not understand: %s", why);
  }
  int result = ReadIdentity(&message, &state.child);
  rekindle_json_free(&message);
  return result;
}

/* In the copy: nothing of the template's is left but what fork shares on purpose. */
static enum rekindle_event BecomeCopy(int proc) {
  struct rekindle_packet* packet = state.packet;
  int error = dup3(packet->descriptors[1], REKINDLE_CONTROL_FD, O_CLOEXEC) < 0 ? errno : 0;
  if (state.child_touches) rekindle_touch_pages(packet->descriptors[packet->descriptor_count - 1]);
  rekindle_packet_close_descriptors(packet);
  state.announced = false;
  int own[] = {REKINDLE_CONTROL_FD, proc};
  if (error == 0) rekindle_own_files(proc, own, 2);
  close(proc);
  if (error != 0)
    Fail(error, "taking the control channel as descriptor %d: %s", REKINDLE_CONTROL_FD, strerror(error));
  if (error != 0 || (state.child_waits && WaitToBeWanted() < 0)) Leave(state.error);
  free(state.packet);
  state.packet = NULL;
  Hold();
  return Adopt(&state.child) == 0 ? REKINDLE_RESTORED : REKINDLE_ERROR;
}

enum rekindle_event rekindle_fork_child(void) {
  struct rekindle_packet* packet = state.packet;
  struct rekindle_birth birth = {.sandbox = packet->descriptors[0],
                                 .cgroups = packet->descriptors + 2,
                                 .cgroup_count = packet->descriptor_count - (state.child_touches ? 3 : 2)};
  /* The template's view of processes has the copy too, whatever is mounted in the sandbox. */
  int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int result = -1;
  if (proc < 0) {
    snprintf(birth.why, sizeof(birth.why), "opening /proc: %s", strerror(errno));
  } else {
    result = rekindle_give_birth(&birth);
  }
  if (result == 0) return BecomeCopy(proc);
  if (proc >= 0) close(proc);
  rekindle_packet_close_descriptors(packet);
  if (result < 0) {
    Refuse(state.child.instance, birth.why);
  } else {
    char text[6 * kLongestInstance + 64];
    struct rekindle_json_writer writer;
    rekindle_json_begin(&writer, text, sizeof(text));
    rekindle_json_add_string(&writer, "type", "forked");
    rekindle_json_add_string(&writer, "instance", state.child.instance);
    rekindle_json_add_number(&writer, "pid", birth.pid);
    Tell(&writer);
  }
  FreeIdentity(&state.child);
  return REKINDLE_FORKED;
}

void rekindle_renew(void) {
  unsigned char bytes[48];
  for (size_t i = 0; i < state.openssl_count; ++i) {
    if (getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes)) {
      state.openssl_add[i](bytes, sizeof(bytes), sizeof(bytes));
    }
  }
  explicit_bzero(bytes, sizeof(bytes));
}

void rekindle_up(void) { SayUp(false); }

enum rekindle_event rekindle_serve_as_template(void) {
  for (;;) {
    switch (rekindle_next_request()) {
      case REKINDLE_FORK: {
        enum rekindle_event event = rekindle_fork_child();
        if (event != REKINDLE_FORKED) return event;
        break;
      }
      case REKINDLE_CLOSED:
        _exit(0);
      default:
        break;
    }
  }
}

enum rekindle_event rekindle_ready(struct rekindle_restored* out) {
  if (!rekindle_held()) return REKINDLE_NOT_HELD;
  rekindle_run_before_snapshot();
  /* What is buffered would be written by each copy. */
  fflush(stdout);
  fflush(stderr);
  if (rekindle_park() < 0) return REKINDLE_ERROR;
  enum rekindle_event event;
  do {
    event = rekindle_wait();
  } while (event == REKINDLE_INTERRUPTED);
  if (event == REKINDLE_TEMPLATE) event = rekindle_serve_as_template();
  if (event != REKINDLE_RESTORED) return event;
  rekindle_renew();
  rekindle_run_after_restore();
  rekindle_up();
  if (out != NULL) *out = state.restored;
  return REKINDLE_RESTORED;
}
