/* The JSON of the control channel, strictly: one object whose values are strings, 64-bit integers, booleans,
 * nulls, or objects of strings. No fractions, no arrays, no duplicate names, no NUL in a string, valid UTF-8.
 */
#ifndef REKINDLE_HOOK_JSON_H_
#define REKINDLE_HOOK_JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum rekindle_json_kind {
  REKINDLE_JSON_STRING,
  REKINDLE_JSON_NUMBER,
  REKINDLE_JSON_BOOLEAN,
  REKINDLE_JSON_NULL,
  REKINDLE_JSON_OBJECT, /* of strings */
};

struct rekindle_json_member {
  const char* name;
  enum rekindle_json_kind kind;
  const char* string;
  int64_t number;
  bool truth;
  size_t first, count; /* of an object: which of rekindle_json.nested are its own */
};

struct rekindle_json {
  char* text; /* a copy, in which the strings were decoded */
  struct rekindle_json_member* members;
  size_t count;
  struct rekindle_json_member* nested;
  size_t nested_count;
};

/* 0, or -1 with errno (EBADMSG, ENOMEM) and the reason in `why`. `*json` is to be freed only after a 0. */
int rekindle_json_parse(const char* text, size_t length, struct rekindle_json* json, char* why,
                        size_t why_size);
void rekindle_json_free(struct rekindle_json* json);

/* The member of that name and kind, or null. */
const struct rekindle_json_member* rekindle_json_find(const struct rekindle_json* json, const char* name,
                                                      enum rekindle_json_kind kind);
/* The string of that name, or `otherwise`. */
const char* rekindle_json_string(const struct rekindle_json* json, const char* name, const char* otherwise);

/* Writes an object member by member into a buffer of the caller's. */
struct rekindle_json_writer {
  char* at;
  size_t size, used;
  bool failed; /* did not fit */
};
void rekindle_json_begin(struct rekindle_json_writer* writer, char* buffer, size_t size);
/* What is no valid UTF-8 in `value` comes out as question marks. */
void rekindle_json_add_string(struct rekindle_json_writer* writer, const char* name, const char* value);
void rekindle_json_add_number(struct rekindle_json_writer* writer, const char* name, int64_t value);
/* The length of the finished, NUL-terminated text, or 0 when it did not fit. */
size_t rekindle_json_end(struct rekindle_json_writer* writer);

#ifdef __cplusplus
}
#endif

#endif /* REKINDLE_HOOK_JSON_H_ */
