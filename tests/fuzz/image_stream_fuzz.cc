// Image streams: as they come, and with a header put before them, so that the fuzzer gets behind it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dedup_store/image_stream.h"

using rekindle::store::ImageStreamReader;
using rekindle::store::ImageStreamWriter;

namespace {

void Check(absl::string_view input) {
  ImageStreamReader reader([&input](absl::Span<std::byte> out) -> absl::StatusOr<size_t> {
    const size_t n = std::min(input.size(), out.size());
    std::memcpy(out.data(), input.data(), n);
    input.remove_prefix(n);
    return n;
  });
  if (!reader.ReadHeader().ok()) return;
  for (;;) {
    auto record = reader.Next();
    if (!record.ok() || record->has_end()) return;
    auto data = reader.ReadData();
    if (!data.ok()) return;
    if (data->size() > rekindle::store::kMaxStreamData) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  std::string stream;
  ImageStreamWriter writer([&stream](absl::string_view bytes) {
    stream.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  });
  rekindle::v1::ImageStreamRecord header;
  header.mutable_header()->set_version(rekindle::store::kImageStreamVersion);
  if (!writer.Put(header).ok()) abort();
  stream.append(input.data(), input.size());
  Check(stream);
  return 0;
}
