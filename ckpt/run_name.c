// Part of rekindle-criu-preload.so: CRIU calls the firewall's table, with which it holds back packets, by a
// UUID that it makes for each run. Where CRIU is killed nobody would know which of several tables is whose.
// So Rekindle gives the UUID.
//
// Linked against no part of the C library, as page_filter.c.
#define _GNU_SOURCE
#include "criu/run_name.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UUID_BYTES 16

static int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "01234567-89ab-…"; 0: it is none.
static int Parse(const char* text, unsigned char* uuid) {
  for (int i = 0; i < UUID_BYTES; ++i) {
    if (*text == '-') ++text;
    const int high = HexDigit(text[0]);
    const int low = high < 0 ? -1 : HexDigit(text[1]);
    if (low < 0) return 0;
    uuid[i] = (unsigned char)(high << 4 | low);
    text += 2;
  }
  return *text == 0;
}

// Of libuuid.
void uuid_generate(unsigned char* uuid);
void uuid_generate(unsigned char* uuid) {
  const char* given = getenv(CRIU_RUN);
  if (given != NULL && Parse(given, uuid)) return;
  for (long done = 0; done < UUID_BYTES;) {
    const long more = syscall(SYS_getrandom, uuid + done, UUID_BYTES - (unsigned long)done, 0);
    if (more > 0) done += more;
  }
  uuid[6] = (unsigned char)((uuid[6] & 0x0f) | 0x40);
  uuid[8] = (unsigned char)((uuid[8] & 0x3f) | 0x80);
}
