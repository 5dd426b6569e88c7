// How the index grows: index_scale FOLDER [MILLIONS…] (default 1 10 100). For each number of chunks it makes
// a store in FOLDER whose packs have true frame tables and page tables but holes for data, lets the store
// build its index, and measures what a commit pays: now and then a merge, opening, look-ups of present and
// absent pages, memory. Prints a table in Markdown. 100 million chunks take about 4.5 GB of disk and a few
// minutes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "dedup_store/page_index.h"
#include "dedup_store/page_table.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kPagesPerPack = 1000000;
constexpr size_t kLookups = 200000;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  exit(1);
}

// splitmix64: page `i`'s fingerprint, so that none has to be remembered.
uint64_t FingerprintOf(uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A pack of raw frames, without their data.
PackRecord MakePack(StoreCore& core, uint64_t first, uint32_t pages) {
  PackRecord record;
  record.id = NewFileId();
  record.pages = pages;
  std::vector<FrameEntry> frames;
  std::vector<uint64_t> fingerprints(pages);
  for (uint32_t page = 0; page < pages; ++page) {
    fingerprints[page] = FingerprintOf(first + page);
    if (page % kMaxFramePages != 0) continue;
    uint32_t n = std::min(kMaxFramePages, pages - page);
    frames.push_back({kPackHeaderBytes + uint64_t{page} * kPageSize,
                      n * static_cast<uint32_t>(kPageSize),
                      page,
                      FingerprintOf(~page),
                      {}});
  }
  record.frames = static_cast<uint32_t>(frames.size());
  record.stored_bytes = uint64_t{pages} * kPageSize;

  PackHeader header{};
  memcpy(header.magic, kPackMagic, sizeof header.magic);
  header.version = kFormatVersion;
  header.page_size = kPageSize;
  memcpy(header.store_uuid, core.identity().uuid.data(), sizeof header.store_uuid);
  header.pack_id = record.id;
  header.checksum = Checksum(&header, offsetof(PackHeader, checksum));
  PackFooter footer{};
  memcpy(footer.magic, kFooterMagic, sizeof footer.magic);
  footer.version = kFormatVersion;
  footer.section_count = kSectionCount;
  footer.pack_id = record.id;
  footer.frames = record.frames;
  footer.pages = pages;
  footer.data_end = kPackHeaderBytes + record.stored_bytes;
  footer.stored_bytes = record.stored_bytes;
  const uint64_t frame_bytes = frames.size() * sizeof(FrameEntry);
  footer.sections[kFrames] = {footer.data_end, frame_bytes, Checksum(frames.data(), frame_bytes)};
  footer.sections[kManifest] =
      footer.sections[kImageRecord] = {footer.data_end + frame_bytes, 0, Checksum("")};
  footer.checksum = Checksum(&footer, offsetof(PackFooter, checksum));
  record.file_bytes = (footer.data_end + frame_bytes + sizeof footer + 4095) / 4096 * 4096;

  auto file = core.io()->CreateBuffered(core.pack_path(record.id));
  Check(file.status());
  auto write = [&](uint64_t at, const void* data, size_t n) {
    Check((*file)->WriteAt(at, {static_cast<const std::byte*>(data), n}));
  };
  write(0, &header, sizeof header);
  write(footer.data_end, frames.data(), frame_bytes);
  write(record.file_bytes - sizeof footer, &footer, sizeof footer);
  Check(WritePageTable(&core, record.id, fingerprints));
  return record;
}

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

// The median and the 99th percentile of single look-ups, in µs.
template <typename F>
std::pair<double, double> Time(F look_up) {
  std::vector<double> micros;
  micros.reserve(kLookups);
  for (size_t i = 0; i < kLookups; ++i) {
    auto begin = std::chrono::steady_clock::now();
    look_up(i);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(micros.begin(), micros.end());
  return {micros[micros.size() / 2], micros[micros.size() * 99 / 100]};
}

void Measure(const std::string& folder, uint64_t millions) {
  auto temporary = TemporaryDirectory::Make(folder, "index_scale.");
  Check(temporary.status());
  StoreOptions options;
  options.path = temporary->path();
  const uint64_t chunks = millions * 1000000;
  double build = 0, longest_merge = 0;
  uint64_t index_bytes = 0;
  {
    auto core = StoreCore::Open(options);
    Check(core.status());
    Stopwatch watch;
    for (uint64_t first = 0; first < chunks; first += kPagesPerPack) {
      PackRecord pack =
          MakePack(**core, first, static_cast<uint32_t>(std::min(kPagesPerPack, chunks - first)));
      Check((*core)->catalog().Update([&](Catalog::Txn& txn) { return txn.PutPack(pack); }));
      Stopwatch merge;
      Check(MergeIndexes(core->get(), false));
      longest_merge = std::max(longest_merge, merge.seconds());
    }
    Check(MergeIndexes(core->get(), true));
    build = watch.seconds();
    auto txn = (*core)->catalog().Read();
    Check(txn.status());
    auto indexes = txn->Indexes();
    Check(indexes.status());
    for (const IndexRecord& index : *indexes) index_bytes += index.file_bytes;
  }
  const double before = ResidentBytes();
  Stopwatch watch;
  auto core = StoreCore::Open(options);
  Check(core.status());
  auto index = PageIndex::Load(core->get());
  Check(index.status());
  const double open = watch.seconds();

  std::mt19937_64 random(7);
  auto any = [](const Pack&, uint32_t) { return true; };
  // Once through everything: afterwards the cache is warm and the memory what it comes to.
  for (uint64_t i = 0; i < chunks; i += 16) (void)(*index)->Count(FingerprintOf(i));
  auto present = Time([&](size_t) {
    if (!(*index)->Find(FingerprintOf(random() % chunks), any)) abort();
  });
  auto absent = Time([&](size_t) {
    if ((*index)->Find(FingerprintOf(chunks + random() % chunks), any)) abort();
  });
  const double memory = ResidentBytes() - before;
  printf("| %lu | %.1f | %.1f | %.0f | %.2f / %.2f | %.2f / %.2f | %.1f | %.1f |\n", millions, build,
         longest_merge, open * 1e3, present.first, present.second, absent.first, absent.second,
         memory / static_cast<double>(chunks),
         static_cast<double>(index_bytes) / static_cast<double>(chunks));
  fflush(stdout);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: index_scale FOLDER [MILLIONS...]\n");
    return 2;
  }
  printf(
      "| chunks, millions | building, s | longest merge, s | open, ms | present, us: median / p99 | absent, "
      "us: median / p99 "
      "| memory, B a chunk | index files, B a chunk |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<uint64_t> sizes = {1, 10, 100};
  if (argc > 2) sizes.clear();
  for (int i = 2; i < argc; ++i) sizes.push_back(strtoull(argv[i], nullptr, 10));
  for (uint64_t millions : sizes) Measure(argv[1], millions);
  return 0;
}

}  // namespace
}  // namespace rekindle::store

int main(int argc, char** argv) { return rekindle::store::Main(argc, argv); }
