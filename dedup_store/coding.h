// Little-endian and variable-length integers for the on-disk records. Encoder appends to a string; Decoder
// reads one and never runs past its end: after the first bad read `ok()` is false and all further values are
// zero.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace rekindle::store {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the on-disk formats are written by memcpy");

class Encoder {
 public:
  void Raw(const void* data, size_t size) { out_.append(static_cast<const char*>(data), size); }
  void U8(uint8_t v) { out_.push_back(static_cast<char>(v)); }
  void U32(uint32_t v) { Raw(&v, sizeof v); }
  void U64(uint64_t v) { Raw(&v, sizeof v); }
  void Varint(uint64_t v) {
    while (v >= 0x80) {
      U8(static_cast<uint8_t>(v | 0x80));
      v >>= 7;
    }
    U8(static_cast<uint8_t>(v));
  }
  void Signed(int64_t v) { Varint((static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63)); }
  void String(absl::string_view s) {
    Varint(s.size());
    Raw(s.data(), s.size());
  }
  const std::string& out() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Decoder {
 public:
  explicit Decoder(absl::string_view in) : in_(in) {}
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && in_.empty(); }
  size_t remaining() const { return in_.size(); }

  bool Raw(void* out, size_t size) {
    if (!ok_ || in_.size() < size) {
      ok_ = false;
      memset(out, 0, size);
      return false;
    }
    memcpy(out, in_.data(), size);
    in_.remove_prefix(size);
    return true;
  }
  uint8_t U8() { return Fixed<uint8_t>(); }
  uint32_t U32() { return Fixed<uint32_t>(); }
  uint64_t U64() { return Fixed<uint64_t>(); }
  uint64_t Varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = U8();
      v |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return ok_ ? v : 0;
    }
    ok_ = false;
    return 0;
  }
  int64_t Signed() {
    uint64_t v = Varint();
    return static_cast<int64_t>((v >> 1) ^ (~(v & 1) + 1));
  }
  std::string String() { return std::string(View(Varint())); }
  // The next `size` bytes, which lie in what the decoder was made from.
  absl::string_view View(uint64_t size) {
    if (!ok_ || size > in_.size()) {
      ok_ = false;
      return {};
    }
    absl::string_view view = in_.substr(0, size);
    in_.remove_prefix(size);
    return view;
  }

 private:
  template <typename T>
  T Fixed() {
    T v;
    Raw(&v, sizeof v);
    return v;
  }
  absl::string_view in_;
  bool ok_ = true;
};

// The bytes that pairs of hexadecimal digits stand for, up to the first that is none. (abseil's function of
// this kind differs between its releases.)
inline std::string BytesOfHex(absl::string_view hex) {
  auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    int high = value(hex[i]), low = value(hex[i + 1]);
    if (high < 0 || low < 0) break;
    bytes.push_back(static_cast<char>(high << 4 | low));
  }
  return bytes;
}

}  // namespace rekindle::store
