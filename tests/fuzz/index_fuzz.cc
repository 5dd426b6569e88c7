// Index files and page tables: whatever they hold, a look-up must end and point nowhere wrong.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/file.h"
#include "base/log.h"
#include "dedup_store/index_file.h"
#include "dedup_store/page_index.h"
#include "dedup_store/page_table.h"
#include "dedup_store/store_core.h"

using namespace rekindle::store;  // NOLINT: a program of one function

namespace {

constexpr uint64_t kId = 9;

// One store for all runs; its catalog names one index file.
struct World {
  World() {
    rekindle::SetLogLevel(rekindle::LogLevel::kError);
    auto made = rekindle::TemporaryDirectory::Make("/dev/shm", "index_fuzz.");
    if (!made.ok()) abort();
    folder = std::make_unique<rekindle::TemporaryDirectory>(*std::move(made));
    StoreOptions options;
    options.path = folder->path();
    auto opened = StoreCore::Open(options);
    if (!opened.ok()) abort();
    core = *std::move(opened);
    auto put = core->catalog().Update([](Catalog::Txn& txn) { return txn.PutIndex({kId, 1, 1}); });
    if (!put.ok()) abort();
  }
  std::unique_ptr<rekindle::TemporaryDirectory> folder;
  std::shared_ptr<StoreCore> core;
};

void Write(const std::string& path, absl::string_view bytes) {
  (void)unlink(path.c_str());
  auto file = RealBlockIo()->CreateBuffered(path);
  if (!file.ok()) abort();
  if (!(*file)->WriteAt(0, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}).ok()) abort();
}

void LookUp(World& world, absl::string_view bytes) {
  Write(world.core->index_path(kId), bytes);
  (void)VerifyIndexFile(world.core.get(), {kId, 1, 1});
  auto index = PageIndex::Load(world.core.get());
  if (!index.ok()) abort();
  for (uint64_t fingerprint :
       {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{0x123456789abcdef0}}) {
    (void)(*index)->Count(fingerprint);
    if ((*index)->Find(fingerprint, [](const Pack&, uint32_t) { return true; })) abort();  // there is no pack
  }
  Write(world.core->page_table_path(kId), bytes);
  (void)PageTable::LoadFile(world.core.get(), kId, bytes.size() >= 8 ? (bytes.size() - 56) / 8 : 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;  // removed at the end
  std::string bytes(reinterpret_cast<const char*>(data), size);
  LookUp(world, bytes);
  if (size < sizeof(IndexHeader)) return 0;
  IndexHeader header;
  memcpy(&header, bytes.data(), sizeof header);
  memcpy(header.magic, kIndexMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.index_id = kId;
  header.bucket_bits %= 40;
  header.buckets_at = sizeof header + header.packs * 8;
  header.entries_at = (header.buckets_at + ((uint64_t{1} << header.bucket_bits) + 1) * 4 + 7) / 8 * 8;
  header.body_checksum = Checksum(bytes.data() + sizeof header, size - sizeof header);
  header.checksum = Checksum(&header, offsetof(IndexHeader, checksum));
  memcpy(bytes.data(), &header, sizeof header);
  LookUp(world, bytes);
  return 0;
}
