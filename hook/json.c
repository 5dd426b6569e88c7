#include "hook/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names are looked for duplicates by comparing each with each. */
enum { kMostMembers = 4096 };

struct reader {
  char* at;
  char* end;
  struct rekindle_json* json;
  const char* problem;
};

static bool Fail(struct reader* reader, const char* problem) {
  reader->problem = problem;
  return false;
}

static void SkipSpace(struct reader* reader) {
  while (reader->at < reader->end &&
         (*reader->at == ' ' || *reader->at == '\t' || *reader->at == '\n' || *reader->at == '\r')) {
    ++reader->at;
  }
}

static bool Take(struct reader* reader, char c) {
  if (reader->at == reader->end || *reader->at != c) return false;
  ++reader->at;
  return true;
}

static bool TakeWord(struct reader* reader, const char* word) {
  size_t length = strlen(word);
  if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, word, length) != 0) return false;
  reader->at += length;
  return true;
}

/* The length of the UTF-8 sequence at `at`, or 0 when there is no valid one. */
static size_t Utf8Length(const char* at, size_t left) {
  const unsigned char* s = (const unsigned char*)at;
  if (left == 0) return 0;
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
  if (left < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  if (s[0] == 0xe0 && s[1] < 0xa0) return 0; /* longer than needed */
  if (s[0] == 0xed && s[1] > 0x9f) return 0; /* a surrogate */
  if (s[0] == 0xf0 && s[1] < 0x90) return 0; /* longer than needed */
  if (s[0] == 0xf4 && s[1] > 0x8f) return 0; /* beyond the last code point */
  return length;
}

static char* PutUtf8(char* out, uint32_t code) {
  if (code < 0x80) {
    *out++ = (char)code;
  } else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 0x3f));
    *out++ = (char)(0x80 | (code & 0x3f));
  } else {
    *out++ = (char)(0xf0 | code >> 18);
    *out++ = (char)(0x80 | (code >> 12 & 0x3f));
    *out++ = (char)(0x80 | (code >> 6 & 0x3f));
    *out++ = (char)(0x80 | (code & 0x3f));
  }
  return out;
}

static bool TakeHex4(struct reader* reader, uint32_t* value) {
  if (reader->end - reader->at < 4) return Fail(reader, "a \\u escape is cut off");
  *value = 0;
  for (int i = 0; i < 4; ++i) {
    char c = *reader->at++;
    uint32_t digit;
    if (c >= '0' && c <= '9') {
      digit = (uint32_t)(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = (uint32_t)(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = (uint32_t)(c - 'A' + 10);
    } else {
      return Fail(reader, "a \\u escape has a character that is no hexadecimal digit");
    }
    *value = *value << 4 | digit;
  }
  return true;
}

static bool TakeEscape(struct reader* reader, char** out) {
  if (reader->at == reader->end) return Fail(reader, "a string is cut off");
  char c = *reader->at++;
  switch (c) {
    case '"':
    case '\\':
    case '/':
      *(*out)++ = c;
      return true;
    case 'b':
      *(*out)++ = '\b';
      return true;
    case 'f':
      *(*out)++ = '\f';
      return true;
    case 'n':
      *(*out)++ = '\n';
      return true;
    case 'r':
      *(*out)++ = '\r';
      return true;
    case 't':
      *(*out)++ = '\t';
      return true;
    case 'u':
      break;
    default:
      return Fail(reader, "a string has an unknown escape");
  }
  uint32_t code;
  if (!TakeHex4(reader, &code)) return false;
  if (code >= 0xd800 && code < 0xdc00) {
    uint32_t low;
    if (!TakeWord(reader, "\\u")) return Fail(reader, "a surrogate stands alone");
    if (!TakeHex4(reader, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return Fail(reader, "a surrogate stands alone");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    return Fail(reader, "a surrogate stands alone");
  }
  if (code == 0) return Fail(reader, "a string holds a NUL");
  *out = PutUtf8(*out, code);
  return true;
}

/* Decodes in place: what comes out is never longer than what was there, and the NUL takes the closing quote's
 * place at the latest. */
static bool TakeString(struct reader* reader, const char** string) {
  if (!Take(reader, '"')) return Fail(reader, "a string was expected");
  char* out = reader->at;
  *string = out;
  while (reader->at < reader->end) {
    unsigned char c = (unsigned char)*reader->at;
    if (c == '"') {
      ++reader->at;
      *out = '\0';
      return true;
    }
    if (c == '\\') {
      ++reader->at;
      if (!TakeEscape(reader, &out)) return false;
    } else if (c < 0x20) {
      return Fail(reader, "a string holds a control character");
    } else {
      size_t length = Utf8Length(reader->at, (size_t)(reader->end - reader->at));
      if (length == 0) return Fail(reader, "a string is no valid UTF-8");
      memmove(out, reader->at, length);
      out += length;
      reader->at += length;
    }
  }
  return Fail(reader, "a string is cut off");
}

static bool TakeNumber(struct reader* reader, int64_t* number) {
  bool negative = Take(reader, '-');
  char* first = reader->at;
  uint64_t value = 0;
  uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
  while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
    uint64_t digit = (uint64_t)(*reader->at++ - '0');
    if (value > (limit - digit) / 10) return Fail(reader, "a number does not fit into 64 bits");
    value = value * 10 + digit;
  }
  if (reader->at == first) return Fail(reader, "a value was expected");
  if (*first == '0' && reader->at - first > 1) return Fail(reader, "a number begins with a zero");
  if (reader->at < reader->end && (*reader->at == '.' || *reader->at == 'e' || *reader->at == 'E')) {
    return Fail(reader, "a number is no integer");
  }
  *number = negative ? (int64_t)(0 - value) : (int64_t)value;
  return true;
}

static struct rekindle_json_member* Add(struct reader* reader, struct rekindle_json_member** members,
                                        size_t* count) {
  if (*count == kMostMembers) {
    Fail(reader, "there are too many members");
    return NULL;
  }
  if ((*count & (*count - 1)) == 0) { /* full: none yet, or a power of two */
    size_t room = *count == 0 ? 1 : *count * 2;
    struct rekindle_json_member* grown = realloc(*members, room * sizeof(**members));
    if (grown == NULL) {
      Fail(reader, NULL);
      return NULL;
    }
    *members = grown;
  }
  struct rekindle_json_member* member = &(*members)[(*count)++];
  memset(member, 0, sizeof(*member));
  return member;
}

static bool IsDuplicate(const struct rekindle_json_member* members, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(members[i].name, name) == 0) return true;
  }
  return false;
}

static bool TakeName(struct reader* reader, const char** name) {
  SkipSpace(reader);
  if (!TakeString(reader, name)) return false;
  SkipSpace(reader);
  if (!Take(reader, ':')) return Fail(reader, "a colon was expected");
  SkipSpace(reader);
  return true;
}

/* After a member: whether another follows. */
static bool TakeSeparator(struct reader* reader, bool* another) {
  SkipSpace(reader);
  *another = Take(reader, ',');
  if (!*another && !Take(reader, '}')) return Fail(reader, "a comma or a closing brace was expected");
  return true;
}

static bool TakeStringObject(struct reader* reader, size_t* first, size_t* count) {
  struct rekindle_json* json = reader->json;
  *first = json->nested_count;
  *count = 0;
  SkipSpace(reader);
  if (Take(reader, '}')) return true;
  for (bool another = true; another;) {
    const char* name;
    const char* value;
    if (!TakeName(reader, &name) || !TakeString(reader, &value)) return false;
    if (json->nested_count > *first && IsDuplicate(json->nested + *first, *count, name)) {
      return Fail(reader, "a name comes twice");
    }
    struct rekindle_json_member* member = Add(reader, &json->nested, &json->nested_count);
    if (member == NULL) return false;
    member->name = name;
    member->string = value;
    ++*count;
    if (!TakeSeparator(reader, &another)) return false;
  }
  return true;
}

static bool TakeValue(struct reader* reader, struct rekindle_json_member* member) {
  char c = reader->at < reader->end ? *reader->at : '\0';
  if (c == '"') {
    member->kind = REKINDLE_JSON_STRING;
    return TakeString(reader, &member->string);
  }
  if (c == '{') {
    ++reader->at;
    member->kind = REKINDLE_JSON_OBJECT;
    return TakeStringObject(reader, &member->first, &member->count);
  }
  if (TakeWord(reader, "true")) {
    member->kind = REKINDLE_JSON_BOOLEAN;
    member->truth = true;
    return true;
  }
  if (TakeWord(reader, "false")) {
    member->kind = REKINDLE_JSON_BOOLEAN;
    return true;
  }
  if (TakeWord(reader, "null")) {
    member->kind = REKINDLE_JSON_NULL;
    return true;
  }
  member->kind = REKINDLE_JSON_NUMBER;
  return TakeNumber(reader, &member->number);
}

static bool TakeDocument(struct reader* reader) {
  struct rekindle_json* json = reader->json;
  SkipSpace(reader);
  if (!Take(reader, '{')) return Fail(reader, "an object was expected");
  SkipSpace(reader);
  bool another = !Take(reader, '}');
  while (another) {
    const char* name;
    if (!TakeName(reader, &name)) return false;
    if (IsDuplicate(json->members, json->count, name)) return Fail(reader, "a name comes twice");
    struct rekindle_json_member* member = Add(reader, &json->members, &json->count);
    if (member == NULL) return false;
    member->name = name;
    if (!TakeValue(reader, member) || !TakeSeparator(reader, &another)) return false;
  }
  SkipSpace(reader);
  if (reader->at != reader->end) return Fail(reader, "there is something after the object");
  return true;
}

int rekindle_json_parse(const char* text, size_t length, struct rekindle_json* json, char* why,
                        size_t why_size) {
  memset(json, 0, sizeof(*json));
  struct reader reader = {.json = json};
  json->text = malloc(length + 1);
  if (json->text != NULL) {
    if (length > 0) memcpy(json->text, text, length);
    json->text[length] = '\0';
    reader.at = json->text;
    reader.end = json->text + length;
    if (TakeDocument(&reader)) return 0;
  }
  int error = reader.problem == NULL ? ENOMEM : EBADMSG;
  if (error == ENOMEM) {
    snprintf(why, why_size, "out of memory");
  } else {
    snprintf(why, why_size, "%s (at byte %td)", reader.problem, reader.at - json->text);
  }
  rekindle_json_free(json);
  errno = error;
  return -1;
}

void rekindle_json_free(struct rekindle_json* json) {
  free(json->text);
  free(json->members);
  free(json->nested);
  memset(json, 0, sizeof(*json));
}

const struct rekindle_json_member* rekindle_json_find(const struct rekindle_json* json, const char* name,
                                                      enum rekindle_json_kind kind) {
  for (size_t i = 0; i < json->count; ++i) {
    if (json->members[i].kind == kind && strcmp(json->members[i].name, name) == 0) return &json->members[i];
  }
  return NULL;
}

const char* rekindle_json_string(const struct rekindle_json* json, const char* name, const char* otherwise) {
  const struct rekindle_json_member* member = rekindle_json_find(json, name, REKINDLE_JSON_STRING);
  return member == NULL ? otherwise : member->string;
}

static void Put(struct rekindle_json_writer* writer, const char* text, size_t length) {
  if (writer->failed || writer->size - writer->used <= length) {
    writer->failed = true;
    return;
  }
  memcpy(writer->at + writer->used, text, length);
  writer->used += length;
}

static void PutString(struct rekindle_json_writer* writer, const char* string) {
  Put(writer, "\"", 1);
  for (size_t left = strlen(string); left > 0;) {
    unsigned char c = (unsigned char)*string;
    size_t length = Utf8Length(string, left);
    if (c == '"' || c == '\\') {
      char escaped[2] = {'\\', (char)c};
      Put(writer, escaped, 2);
    } else if (c < 0x20) {
      char escaped[7];
      snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      Put(writer, escaped, 6);
    } else if (length == 0) {
      Put(writer, "?", 1);
    } else {
      Put(writer, string, length);
    }
    if (length == 0) length = 1;
    string += length;
    left -= length;
  }
  Put(writer, "\"", 1);
}

static void PutName(struct rekindle_json_writer* writer, const char* name) {
  Put(writer, writer->used == 1 ? "" : ",", writer->used == 1 ? 0 : 1);
  PutString(writer, name);
  Put(writer, ":", 1);
}

void rekindle_json_begin(struct rekindle_json_writer* writer, char* buffer, size_t size) {
  *writer = (struct rekindle_json_writer){.at = buffer, .size = size};
  Put(writer, "{", 1);
}

void rekindle_json_add_string(struct rekindle_json_writer* writer, const char* name, const char* value) {
  PutName(writer, name);
  PutString(writer, value);
}

void rekindle_json_add_number(struct rekindle_json_writer* writer, const char* name, int64_t value) {
  char digits[24];
  int length = snprintf(digits, sizeof(digits), "%" PRId64, value);
  PutName(writer, name);
  Put(writer, digits, (size_t)length);
}

size_t rekindle_json_end(struct rekindle_json_writer* writer) {
  Put(writer, "}", 1);
  if (writer->failed) return 0;
  writer->at[writer->used] = '\0';
  return writer->used;
}
