#include "dedup_store/transposition.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rekindle::store {

namespace {

constexpr size_t kWord = 8;

}  // namespace

#if defined(__SSE2__)

namespace {

// 16 words at a time: a matrix of 16 x 8 bytes.
constexpr size_t kBlock = 16;

__m128i LoadAt(const std::byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
void StoreAt(std::byte* at, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), value); }

}  // namespace

void Transpose(const std::byte* words, std::byte* planes, size_t bytes) {
  const size_t count = bytes / kWord;
  for (size_t w = 0; w < count; w += kBlock) {
    __m128i r[8], t[8];
    for (size_t i = 0; i < 8; ++i) r[i] = LoadAt(words + w * kWord + i * 16);
    // Each step halves the distance between bytes that belong together.
    for (int step = 0; step < 4; ++step) {
      for (size_t i = 0; i < 4; ++i) {
        t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 4]);
        t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 4]);
      }
      for (size_t i = 0; i < 8; ++i) r[i] = t[i];
    }
    for (size_t b = 0; b < kWord; ++b) StoreAt(planes + b * count + w, r[b]);
  }
}

void TransposeBack(const std::byte* planes, std::byte* words, size_t bytes) {
  const size_t count = bytes / kWord;
  for (size_t w = 0; w < count; w += kBlock) {
    __m128i r[8], t[8];
    for (size_t b = 0; b < kWord; ++b) r[b] = LoadAt(planes + b * count + w);
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < 4; ++i) {
        t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 4]);
        t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 4]);
      }
      for (size_t i = 0; i < 8; ++i) r[i] = t[i];
    }
    for (size_t i = 0; i < 8; ++i) StoreAt(words + w * kWord + i * 16, r[i]);
  }
}

#else

void Transpose(const std::byte* words, std::byte* planes, size_t bytes) {
  const size_t count = bytes / kWord;
  for (size_t w = 0; w < count; ++w) {
    for (size_t b = 0; b < kWord; ++b) planes[b * count + w] = words[w * kWord + b];
  }
}

void TransposeBack(const std::byte* planes, std::byte* words, size_t bytes) {
  const size_t count = bytes / kWord;
  for (size_t w = 0; w < count; ++w) {
    for (size_t b = 0; b < kWord; ++b) words[w * kWord + b] = planes[b * count + w];
  }
}

#endif

}  // namespace rekindle::store
