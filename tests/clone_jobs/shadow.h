// What memory_juggler's memory must hold: for each page of an arena, told apart from the memory itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rekindle::clone_jobs {

inline constexpr size_t kPageSize = 4096;
inline constexpr size_t kPageWords = kPageSize / sizeof(uint64_t);

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t Next();
  size_t Below(size_t limit) { return static_cast<size_t>(Next() % limit); }
  bool OneIn(size_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

// The word at `index` of a page whose content is `token`; never 0, so that no page of zeros passes for it.
uint64_t WordOf(uint64_t token, size_t index);
void Fill(uint64_t* page, uint64_t token);
// Of a page whose content is `token`.
uint64_t SumOf(uint64_t token);
uint64_t Sum(const uint64_t* page);

// One page's expected state.
struct ShadowPage {
  uint64_t token = 0;  // content; 0: zeros
  uint64_t patch = 0;  // the word at PatchedWord(), if `patched`
  bool mapped = false;
  bool patched = false;
  bool freed = false;     // MADV_FREE: as said, or zeros
  bool unforked = false;  // MADV_DONTFORK: not in children
  uint8_t access = 0;     // PROT_* bits

  size_t PatchedWord() const { return static_cast<size_t>(token % kPageWords); }
  uint64_t Word(size_t index) const;
};

// Empty, or what is wrong with the page at `address`. It must be readable.
std::string Compare(const ShadowPage& expected, const uint64_t* page, const char* who);

}  // namespace rekindle::clone_jobs
