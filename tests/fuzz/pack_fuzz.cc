// Packs whose checksums fit whatever is in them: footer, frame table and frames are the fuzzer's.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "dedup_store/frame_loader.h"
#include "dedup_store/manifest.h"
#include "dedup_store/pack.h"
#include "tests/fuzz/memory_file.h"

using namespace rekindle::store;  // NOLINT: a program of one function

namespace {

constexpr uint64_t kId = 7;

void Use(std::string bytes) {
  auto pack = Pack::Open(std::make_unique<MemoryFile>(std::move(bytes)), kId, StoreUuid{});
  if (!pack.ok()) return;
  static const Fingerprinter fingerprinter{StoreSeed{}};
  FrameLoader loader(fingerprinter);
  for (uint32_t frame = 0; frame < (*pack)->frames() && frame < 64; ++frame) {
    (void)loader.Load(**pack, frame);
  }
  if ((*pack)->pages() > 0) {
    (void)(*pack)->IdentityOf(0);
    (void)(*pack)->IdentityOf((*pack)->pages() - 1);
  }
  auto manifest = (*pack)->ReadSection(kManifest);
  if (manifest.ok()) (void)Manifest::Decode(*manifest);
  (void)(*pack)->ReadSection(kImageRecord);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Use(std::string(reinterpret_cast<const char*>(data), size));
  if (size < sizeof(PackFooter)) return 0;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string file(kPackHeaderBytes, '\0');
  PackHeader header{};
  memcpy(header.magic, kPackMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.page_size = kPageSize;
  header.pack_id = kId;
  header.checksum = Checksum(&header, offsetof(PackHeader, checksum));
  memcpy(file.data(), &header, sizeof header);
  file += bytes;
  PackFooter footer;
  memcpy(&footer, file.data() + file.size() - sizeof footer, sizeof footer);
  memcpy(footer.magic, kFooterMagic, sizeof footer.magic);
  footer.version = kFormatVersion;
  footer.section_count = kSectionCount;
  footer.pack_id = kId;
  for (SectionEntry& section : footer.sections) {
    if (section.offset <= file.size() && section.bytes <= file.size() - section.offset) {
      section.checksum = Checksum(file.data() + section.offset, section.bytes);
    }
  }
  footer.checksum = Checksum(&footer, offsetof(PackFooter, checksum));
  memcpy(file.data() + file.size() - sizeof footer, &footer, sizeof footer);
  Use(std::move(file));
  return 0;
}
