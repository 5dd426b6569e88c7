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
#include "dedup_store/index_merge.h"
#include "dedup_store/page_index.h"
#include "dedup_store/sparse_pack.h"
#include "dedup_store/store_core.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kPagesPerPack = 1000000;
constexpr size_t kLookups = 200000;

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

// The most that was resident since the last ForgetPeak.
double PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) return strtod(line.c_str() + 6, nullptr) * 1024;
  }
  return 0;
}
void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

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
  MustBeOk(temporary.status());
  StoreOptions options;
  options.path = temporary->path();
  const uint64_t chunks = millions * 1000000;
  double build = 0, longest_merge = 0, most_memory = 0;
  uint64_t index_bytes = 0;
  const auto merge = [&](StoreCore* core, bool all) {
    ForgetPeak();
    const double resident = ResidentBytes();
    Stopwatch watch;
    MustBeOk(MergeIndexes(core, all));
    longest_merge = std::max(longest_merge, watch.seconds());
    most_memory = std::max(most_memory, PeakBytes() - resident);
  };
  {
    auto core = StoreCore::Open(options);
    MustBeOk(core.status());
    Stopwatch watch;
    for (uint64_t first = 0; first < chunks; first += kPagesPerPack) {
      MakeSparsePack(**core, first, static_cast<uint32_t>(std::min(kPagesPerPack, chunks - first)));
      merge(core->get(), false);
    }
    merge(core->get(), true);
    build = watch.seconds();
    auto txn = (*core)->catalog().Read();
    MustBeOk(txn.status());
    auto indexes = txn->Indexes();
    MustBeOk(indexes.status());
    for (const IndexRecord& index : *indexes) index_bytes += index.file_bytes;
  }
  const double before = ResidentBytes();
  Stopwatch watch;
  auto core = StoreCore::Open(options);
  MustBeOk(core.status());
  auto index = PageIndex::Load(core->get());
  MustBeOk(index.status());
  const double open = watch.seconds();

  std::mt19937_64 random(7);
  auto any = [](const Pack&, uint32_t) { return true; };
  // Once through everything: afterwards the cache is warm and the memory what it comes to.
  for (uint64_t i = 0; i < chunks; i += 16) (void)(*index)->Count(SparseFingerprint(i));
  auto present = Time([&](size_t) {
    if (!(*index)->Find(SparseFingerprint(random() % chunks), any)) abort();
  });
  auto absent = Time([&](size_t) {
    if ((*index)->Find(SparseFingerprint(chunks + random() % chunks), any)) abort();
  });
  const double memory = ResidentBytes() - before;
  printf("| %lu | %.1f | %.1f | %.0f | %.0f | %.2f / %.2f | %.2f / %.2f | %.1f | %.1f |\n", millions, build,
         longest_merge, most_memory / (1 << 20), open * 1e3, present.first, present.second, absent.first,
         absent.second, memory / static_cast<double>(chunks),
         static_cast<double>(index_bytes) / static_cast<double>(chunks));
  fflush(stdout);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: index_scale FOLDER [MILLIONS...]\n");
    return 2;
  }
  printf(
      "| chunks, millions | building, s | longest merge, s | its memory, MiB | open, ms | present, us: "
      "median / p99 | absent, "
      "us: median / p99 "
      "| memory, B a chunk | index files, B a chunk |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- "
      "|\n");
  std::vector<uint64_t> sizes = {1, 10, 100};
  if (argc > 2) sizes.clear();
  for (int i = 2; i < argc; ++i) sizes.push_back(strtoull(argv[i], nullptr, 10));
  for (uint64_t millions : sizes) Measure(argv[1], millions);
  return 0;
}

}  // namespace
}  // namespace rekindle::store

int main(int argc, char** argv) { return rekindle::store::Main(argc, argv); }
