// Records of images, as the catalog and every pack hold them: as they come, and with a checksum that fits.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "dedup_store/catalog.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"

using rekindle::store::Checksum;
using rekindle::store::Encoder;
using rekindle::store::ImageRecord;

namespace {

void Check(absl::string_view bytes) {
  auto record = ImageRecord::Decode(bytes);
  if (!record.ok()) return;
  auto again = ImageRecord::Decode(record->Encode());
  if (!again.ok() || again->Encode() != record->Encode()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  Encoder sealed;
  sealed.Raw(data, size);
  sealed.U64(Checksum(input).lo);
  Check(sealed.out());
  return 0;
}
