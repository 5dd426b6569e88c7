// How fast the store takes images in and gives them back: store_speed FOLDER [MiB]. Makes a store there,
// removes it. Prints one line for each image; rates are logical bytes a second.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "dedup_store/store.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    if (data_ == MAP_FAILED) abort();
  }
  ~Memory() { munmap(data_, bytes_); }
  std::byte* data() { return data_; }
  size_t size() const { return bytes_; }
  uint64_t* words() { return reinterpret_cast<uint64_t*>(data_); }

 private:
  std::byte* data_;
  size_t bytes_;
};

void FillRandom(Memory& memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < memory.size() / 8; ++i) memory.words()[i] = random();
}

// Like a heap: small numbers and pointers that share their upper bytes.
void FillCompressible(Memory& memory) {
  std::mt19937_64 random(7);
  for (size_t i = 0; i < memory.size() / 8; ++i) {
    memory.words()[i] = i % 3 == 0   ? 0x7f3210000000 + random() % 65536 * 16
                        : i % 3 == 1 ? random() % 1000
                                     : 0;
  }
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "%s\n", status.ToString().c_str());
  exit(1);
}

void Measure(Store& store, const std::string& name, const std::string& parent, Memory& memory) {
  NewImageOptions options;
  options.reference = name;
  options.parent = parent;
  options.replace = true;
  Stopwatch watch;
  auto writer = store.NewImage(options);
  Check(writer.status());
  Check((*writer)->AddPages("memory", kBase, {memory.data(), memory.size()}));
  auto info = (*writer)->Commit();
  Check(info.status());
  double ingest = watch.seconds();
  writer->reset();
  double size = static_cast<double>(memory.size());
  printf("%-14s ingest %6.2f GB/s (%s), stored %5.2f %% + metadata %.3f %%\n", name.c_str(),
         size / ingest / 1e9, FormatSeconds(ingest).c_str(), 100.0 * info->stats.stored_bytes / size,
         100.0 * info->stats.metadata_bytes / size);

  for (const char* cache : {"cold", "warm", "warm"}) {
    if (cache[0] == 'c') {
      sync();
      auto drop = OpenFile("/proc/sys/vm/drop_caches", O_WRONLY);
      if (!drop.ok() || !WriteFully(drop->get(), "1", 1, "drop_caches").ok()) continue;
    }
    watch.Restart();
    auto reader = store.OpenImage(name);
    Check(reader.status());
    std::atomic<uint64_t> got{0};
    PageRun all{kBase, memory.size() / kPageSize, false};
    Check((*reader)->ReadRanges("memory", {&all, 1}, [&](uint64_t, absl::Span<const std::byte> pages) {
      got += pages.size();
      return absl::OkStatus();
    }));
    double read = watch.seconds();
    printf("%-14s read   %6.2f GB/s %s\n", name.c_str(), static_cast<double>(got) / read / 1e9, cache);
  }
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: store_speed FOLDER [MiB]\n");
    return 2;
  }
  auto folder = TemporaryDirectory::Make(argv[1], "store_speed.");
  Check(folder.status());
  StoreOptions options;
  options.path = folder->path();
  auto store = Store::Open(options);
  Check(store.status());
  size_t bytes = (argc > 2 ? strtoull(argv[2], nullptr, 10) : 1024) << 20;
  Memory random(bytes);
  FillRandom(random, 1);
  Measure(**store, "random", "", random);
  std::mt19937_64 pick(2);
  for (size_t i = 0; i < bytes / kPageSize / 100; ++i) {
    random.words()[pick() % (bytes / kPageSize) * (kPageSize / 8)] = pick();
  }
  Measure(**store, "random-touched", "random", random);
  {
    NewImageOptions same;
    same.reference = "same-elsewhere";
    Stopwatch watch;
    auto writer = (*store)->NewImage(same);
    Check(writer.status());
    Check((*writer)->AddPages("other", 0x10000000, {random.data(), random.size()}));
    Check((*writer)->Commit().status());
    printf("%-14s ingest %6.2f GB/s (all of it found by content)\n", "same-elsewhere",
           static_cast<double>(bytes) / watch.seconds() / 1e9);
  }
  FillCompressible(random);
  Measure(**store, "compressible", "", random);
  return 0;
}

}  // namespace
}  // namespace rekindle::store

int main(int argc, char** argv) { return rekindle::store::Main(argc, argv); }
