#include "tests/clone_jobs/shadow.h"

#include <unistd.h>

#include <cstdio>

namespace rekindle::clone_jobs {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15;
  return Mix(state_);
}

uint64_t WordOf(uint64_t token, size_t index) { return Mix(token * 0x2545f4914f6cdd1d + index) | 1; }

void Fill(uint64_t* page, uint64_t token) {
  for (size_t i = 0; i < kPageWords; ++i) page[i] = token == 0 ? 0 : WordOf(token, i);
}

uint64_t SumOf(uint64_t token) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kPageWords; ++i) sum = sum * 31 + WordOf(token, i);
  return sum;
}

uint64_t Sum(const uint64_t* page) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kPageWords; ++i) sum = sum * 31 + page[i];
  return sum;
}

uint64_t ShadowPage::Word(size_t index) const {
  if (patched && index == PatchedWord()) return patch;
  return token == 0 ? 0 : WordOf(token, index);
}

std::string Compare(const ShadowPage& expected, const uint64_t* page, const char* who) {
  size_t wrong = kPageWords;
  bool zero = true;
  for (size_t i = 0; i < kPageWords; ++i) {
    const uint64_t word = page[i];
    zero &= word == 0;
    if (wrong == kPageWords && word != expected.Word(i)) wrong = i;
  }
  if (wrong == kPageWords || (expected.freed && zero)) return "";
  char text[320];
  std::snprintf(text, sizeof text,
                "page %p, word %zu: expected %016llx (token %llx%s%s), found %016llx%s; seen by %s %d",
                static_cast<const void*>(page), wrong, static_cast<unsigned long long>(expected.Word(wrong)),
                static_cast<unsigned long long>(expected.token), expected.patched ? ", patched" : "",
                expected.freed ? ", freed" : "", static_cast<unsigned long long>(page[wrong]),
                zero ? ", the whole page is zeros" : "", who, static_cast<int>(::getpid()));
  return text;
}

}  // namespace rekindle::clone_jobs
