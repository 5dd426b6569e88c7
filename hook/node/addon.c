/* The runtime hook's single steps for Node.js; rekindle/index.js makes its interface of them. Everything runs
 * in the main thread: while the process is parked its event loop stands still. */
#include <dlfcn.h>
#include <errno.h>
#include <node_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "hook/rekindle_hook.h"

/* An error of errno's kind, with the library's words. */
static napi_value Throw(napi_env env) {
  char code[24];
  snprintf(code, sizeof(code), "ERRNO_%d", errno);
  napi_throw_error(env, code, rekindle_error());
  return NULL;
}

static napi_value Text(napi_env env, const char* text) {
  napi_value value = NULL;
  napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value);
  return value;
}

static napi_value Number(napi_env env, int number) {
  napi_value value = NULL;
  napi_create_int32(env, number, &value);
  return value;
}

static napi_value Held(napi_env env, napi_callback_info info) {
  (void)info;
  napi_value value = NULL;
  napi_get_boolean(env, rekindle_held() != 0, &value);
  return value;
}

static napi_value RunBeforeSnapshot(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  rekindle_run_before_snapshot();
  return NULL;
}

/* park(hasAfterRestore): until the process is woken; REKINDLE_CONTINUED or REKINDLE_RESTORED. Signals with
 * handlers of the program's are taken note of, and handled afterwards. */
static napi_value Park(napi_env env, napi_callback_info info) {
  napi_value argument = NULL;
  size_t count = 1;
  bool has_after_restore = false;
  napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
  if (count > 0) napi_get_value_bool(env, argument, &has_after_restore);
  rekindle_has_after_restore(has_after_restore);
  if (rekindle_park() < 0) return Throw(env);
  enum rekindle_event event;
  do {
    event = rekindle_wait();
  } while (event == REKINDLE_INTERRUPTED);
  /* A process of Node.js has threads besides this one, so it is no template: the requests are answered with
   * that. */
  if (event == REKINDLE_TEMPLATE) event = rekindle_serve_as_template();
  if (event == REKINDLE_ERROR) return Throw(env);
  return Number(env, event);
}

/* Node.js may have OpenSSL inside its program, where the library does not look for it. */
static void RenewOpenssl(void) {
  rekindle_renew();
  void (*add)(const void* bytes, int count, double entropy);
  *(void**)&add = dlsym(RTLD_DEFAULT, "RAND_add");
  unsigned char bytes[48];
  if (add != NULL && getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes)) {
    add(bytes, sizeof(bytes), sizeof(bytes));
  }
  explicit_bzero(bytes, sizeof(bytes));
}

static napi_value Renew(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  RenewOpenssl();
  return NULL;
}

static napi_value RunAfterRestore(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  rekindle_run_after_restore();
  return NULL;
}

static napi_value Up(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  rekindle_up();
  return NULL;
}

/* {id, name, environment}, or null in a process that is no copy. */
static napi_value Instance(napi_env env, napi_callback_info info) {
  (void)info;
  napi_value result = NULL, environment = NULL;
  const struct rekindle_restored* self = rekindle_instance();
  if (self == NULL) {
    napi_get_null(env, &result);
    return result;
  }
  napi_create_object(env, &result);
  napi_create_object(env, &environment);
  for (const char* const* variable = self->environment; *variable != NULL; ++variable) {
    const char* value = strchr(*variable, '=');
    napi_value name = NULL;
    napi_create_string_utf8(env, *variable, (size_t)(value - *variable), &name);
    napi_set_property(env, environment, name, Text(env, value + 1));
  }
  napi_set_named_property(env, result, "id", Text(env, self->instance));
  napi_set_named_property(env, result, "name", Text(env, self->name));
  napi_set_named_property(env, result, "environment", environment);
  return result;
}

static napi_value Send(napi_env env, napi_callback_info info) {
  napi_value argument = NULL;
  size_t count = 1, length = 0;
  napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
  if (count < 1 || napi_get_value_string_utf8(env, argument, NULL, 0, &length) != napi_ok) {
    napi_throw_type_error(env, NULL, "a message is a string");
    return NULL;
  }
  char* text = malloc(length + 1);
  if (text == NULL) {
    napi_throw_error(env, NULL, "out of memory");
    return NULL;
  }
  napi_get_value_string_utf8(env, argument, text, length + 1, &length);
  bool sent = rekindle_send(text) == 0;
  int error = errno;
  free(text);
  errno = error;
  return sent ? NULL : Throw(env);
}

/* The descriptor of this copy's channel, or -1. */
static napi_value Channel(napi_env env, napi_callback_info info) {
  (void)info;
  return Number(env, rekindle_channel());
}

static uint64_t Count(napi_env env, napi_value value) {
  int64_t number = 0;
  return napi_get_value_int64(env, value, &number) == napi_ok && number > 0 ? (uint64_t)number : 0;
}

static napi_value Progress(napi_env env, napi_callback_info info) {
  napi_value arguments[2] = {NULL, NULL};
  size_t count = 2;
  napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
  rekindle_progress(Count(env, arguments[0]), Count(env, arguments[1]));
  return NULL;
}

static napi_value CheckpointHere(napi_env env, napi_callback_info info) {
  napi_value argument = NULL;
  size_t count = 1;
  bool force = false;
  napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
  napi_get_value_bool(env, argument, &force);
  return Number(env, force ? rekindle_checkpoint_now() : rekindle_checkpoint_here());
}

static napi_value CheckpointDue(napi_env env, napi_callback_info info) {
  (void)info;
  napi_value result = NULL;
  napi_get_boolean(env, rekindle_checkpoint_due() != 0, &result);
  return result;
}

static napi_value UnsafeToFork(napi_env env, napi_callback_info info) {
  (void)info;
  char why[2048];
  napi_value result = NULL;
  napi_get_null(env, &result);
  return rekindle_unsafe_to_fork(why, sizeof(why)) ? Text(env, why) : result;
}

NAPI_MODULE_INIT() {
  static const struct {
    const char* name;
    napi_callback function;
  } functions[] = {
      {"held", Held},
      {"runBeforeSnapshot", RunBeforeSnapshot},
      {"park", Park},
      {"renew", Renew},
      {"runAfterRestore", RunAfterRestore},
      {"up", Up},
      {"instance", Instance},
      {"send", Send},
      {"channel", Channel},
      {"progress", Progress},
      {"checkpointHere", CheckpointHere},
      {"checkpointDue", CheckpointDue},
      {"unsafeToFork", UnsafeToFork},
  };
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    napi_value function = NULL;
    if (napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, NULL,
                             &function) != napi_ok ||
        napi_set_named_property(env, exports, functions[i].name, function) != napi_ok) {
      return NULL;
    }
  }
  napi_set_named_property(env, exports, "CONTINUED", Number(env, REKINDLE_CONTINUED));
  napi_set_named_property(env, exports, "RESTORED", Number(env, REKINDLE_RESTORED));
  return exports;
}
