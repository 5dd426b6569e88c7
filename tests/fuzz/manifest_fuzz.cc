// Manifests: as they come, and with the compression made right around them, so that the fuzzer gets behind
// it.
#include <zstd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "dedup_store/coding.h"
#include "dedup_store/manifest.h"

using rekindle::store::Encoder;
using rekindle::store::Extent;
using rekindle::store::Manifest;
using rekindle::store::PagedObject;

namespace {

void Check(absl::string_view encoded) {
  auto manifest = Manifest::Decode(encoded);
  if (!manifest.ok()) return;
  for (const PagedObject& object : manifest->objects) {
    for (const Extent& e : object.extents) {
      if (!e.zero() && e.pack >= manifest->packs.size()) abort();
    }
  }
  // What was let in comes out as it is.
  const std::string again = manifest->Encode();
  auto second = Manifest::Decode(again);
  if (!second.ok() || second->Encode() != again) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  Encoder out;
  out.Raw("RKM1", 4);
  out.U64(size);
  std::string compressed(ZSTD_compressBound(size), '\0');
  compressed.resize(ZSTD_compress(compressed.data(), compressed.size(), data, size, 1));
  out.Raw(compressed.data(), compressed.size());
  Check(out.out());
  return 0;
}
