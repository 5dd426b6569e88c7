// What a gc costs those who read meanwhile: store_gc_speed FOLDER [ROUNDS [IMAGES [MiB]]].
//
// Makes a store in FOLDER with 500 images of 8 MiB that share some of their pages, removes every other image,
// and reads the rest with a cold cache while another process collects; just before, the same reads without
// it. Each round begins with a new store. The last line is the median of the rounds' ratios.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "dedup_store/store.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;
constexpr double kMiB = 1 << 20;
// The pages that images share are taken from so many images' worth of them.
constexpr size_t kPoolImages = 4;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "store_gc_speed: %s\n", status.ToString().c_str());
  exit(1);
}

struct Shape {
  std::string folder;
  size_t images = 500;
  size_t bytes = 8 << 20;

  size_t pages() const { return bytes / kPageSize; }
  std::string name(size_t image) const { return absl::StrCat("image:", image); }
  bool kept(size_t image) const { return image % 2 == 0; }
};

std::unique_ptr<Store> Open(const std::string& path) {
  StoreOptions options;
  options.path = path;
  auto store = Store::Open(options);
  Check(store.status());
  return *std::move(store);
}

// Every other page is noise; the rest shrinks to about a third, as a heap does.
void FillPage(std::byte* page, uint64_t seed, bool noise) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < kPageSize; i += sizeof(uint64_t)) {
    uint64_t word = random();
    if (!noise) word = i % 24 == 0 ? 0x7f3210000000 + word % 65536 * 16 : word % 1000;
    memcpy(page + i, &word, sizeof word);
  }
}

// Three of eight pages come from the pool that all images share, in runs as libraries are; the rest is the
// image's own.
void FillImage(std::vector<std::byte>& memory, size_t image) {
  const size_t pages = memory.size() / kPageSize;
  std::mt19937_64 pick(image);
  for (size_t first = 0; first < pages; first += 64) {
    const bool shared = first / 64 % 8 < 3;
    const uint64_t from = shared ? pick() % (kPoolImages * pages) : 0;
    for (size_t i = first; i < std::min(first + 64, pages); ++i) {
      const uint64_t seed = shared ? from + (i - first) : (image + 1) << 32 | i;
      FillPage(memory.data() + i * kPageSize, seed, seed % 2 == 0);
    }
  }
}

void MakeStore(Store& store, const Shape& shape) {
  std::vector<std::byte> memory(shape.bytes);
  for (size_t image = 0; image < shape.images; ++image) {
    FillImage(memory, image);
    NewImageOptions options;
    options.reference = shape.name(image);
    auto writer = store.NewImage(options);
    Check(writer.status());
    Check((*writer)->AddPages("memory", kBase, memory));
    Check((*writer)->Commit().status());
  }
  for (size_t image = 0; image < shape.images; ++image) {
    if (!shape.kept(image)) Check(store.Remove(shape.name(image)));
  }
}

void DropCaches() {
  sync();
  auto drop = OpenFile("/proc/sys/vm/drop_caches", O_WRONLY);
  Check(drop.status());
  Check(WriteFully(drop->get(), "3", 1, "/proc/sys/vm/drop_caches"));
}

// Reads the kept images round and round, each pass with a cold cache and in an order of its own.
class Reader {
 public:
  Reader(const Store& store, const Shape& shape) : store_(store), shape_(shape), memory_(shape.bytes) {
    for (size_t image = 0; image < shape.images; ++image) {
      if (shape.kept(image)) order_.push_back(image);
    }
    BeginPass();
  }

  void ReadNext() {
    if (pass_done()) BeginPass();
    Stopwatch watch;
    auto image = store_.OpenImage(shape_.name(order_[at_++]));
    Check(image.status());
    PageRun all{kBase, shape_.pages(), false};
    Check((*image)->ReadRanges("memory", {&all, 1}, [&](uint64_t address, absl::Span<const std::byte> pages) {
      memcpy(memory_.data() + (address - kBase), pages.data(), pages.size());
      return absl::OkStatus();
    }));
    bytes_ += shape_.bytes;
    seconds_ += watch.seconds();
  }

  bool pass_done() const { return at_ == order_.size(); }
  double rate() const { return static_cast<double>(bytes_) / seconds_; }
  uint64_t bytes() const { return bytes_; }
  double seconds() const { return seconds_; }

 private:
  void BeginPass() {
    std::shuffle(order_.begin(), order_.end(), random_);
    DropCaches();
    at_ = 0;
  }

  const Store& store_;
  const Shape& shape_;
  std::vector<std::byte> memory_;
  std::vector<size_t> order_;
  std::mt19937_64 random_{1};
  size_t at_ = 0;
  uint64_t bytes_ = 0;
  double seconds_ = 0;
};

// What the collecting process tells, byte by byte.
struct GcResult {
  GcReport report;
  double seconds = 0;
};
static_assert(std::is_trivially_copyable_v<GcResult>);

// gc in a process of its own, with its own Store. `start` is closed by the caller when it may begin.
class Collecting {
 public:
  explicit Collecting(const std::string& store) {
    if (pipe2(start_, O_CLOEXEC) != 0 || pipe2(result_, O_CLOEXEC) != 0) {
      perror("store_gc_speed: making pipes");
      exit(1);
    }
    pid_ = fork();
    if (pid_ < 0) {
      perror("store_gc_speed: starting the process that collects");
      exit(1);
    }
    if (pid_ == 0) Collect(store);
    close(start_[0]);
    close(result_[1]);
  }

  void Begin() { close(start_[1]); }

  bool Running() {
    if (ended_) return false;
    int status = 0;
    pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == 0) return true;
    if (ended != pid_ || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "store_gc_speed: the process that collects failed (wait status %d)\n", status);
      exit(1);
    }
    ended_ = true;
    return false;
  }

  GcResult Result() {
    GcResult result;
    Check(ReadFully(result_[0], &result, sizeof result, "the report of gc"));
    close(result_[0]);
    return result;
  }

 private:
  [[noreturn]] void Collect(const std::string& path) {
    close(start_[1]);
    char byte;
    ssize_t got;
    do {
      got = read(start_[0], &byte, 1);
    } while (got < 0 && errno == EINTR);
    GcResult result;
    Stopwatch watch;
    {
      std::unique_ptr<Store> store = Open(path);
      auto report = store->Gc({});
      Check(report.status());
      result = {*report, watch.seconds()};
    }
    Check(WriteFully(result_[1], &result, sizeof result, "the report of gc"));
    _exit(0);
  }

  int start_[2], result_[2];
  pid_t pid_;
  bool ended_ = false;
};

double Round(const Shape& shape) {
  auto folder = TemporaryDirectory::Make(shape.folder, "store_gc_speed.");
  Check(folder.status());
  const std::string path = folder->path() + "/store";
  MakeStore(*Open(path), shape);
  // Before this process has threads: it is forked.
  Collecting collecting(path);
  std::unique_ptr<Store> store = Open(path);

  Reader idle(*store, shape);
  do {
    idle.ReadNext();
  } while (!idle.pass_done());

  Reader busy(*store, shape);
  collecting.Begin();
  while (collecting.Running()) busy.ReadNext();
  GcResult gc = collecting.Result();
  double ratio = busy.rate() / idle.rate();
  printf("idle:      %7.0f MiB in %6.2f s, %6.0f MiB/s\n", idle.bytes() / kMiB, idle.seconds(),
         idle.rate() / kMiB);
  printf("during gc: %7.0f MiB in %6.2f s, %6.0f MiB/s, %.2f of idle\n", busy.bytes() / kMiB, busy.seconds(),
         busy.rate() / kMiB, ratio);
  printf("gc:        %.2f s; %lu packs removed, %lu rewritten, %.0f MiB freed\n", gc.seconds,
         gc.report.packs_removed, gc.report.packs_rewritten, gc.report.bytes_freed / kMiB);
  fflush(stdout);
  return ratio;
}

int Main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    fprintf(stderr, "usage: store_gc_speed FOLDER [ROUNDS [IMAGES [MiB]]]\n");
    return 2;
  }
  Shape shape;
  shape.folder = argv[1];
  size_t rounds = argc > 2 ? strtoull(argv[2], nullptr, 10) : 3;
  if (argc > 3) shape.images = strtoull(argv[3], nullptr, 10);
  if (argc > 4) shape.bytes = strtoull(argv[4], nullptr, 10) << 20;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::max<size_t>(rounds, 1); ++i) ratios.push_back(Round(shape));
  std::sort(ratios.begin(), ratios.end());
  printf("ratio %.3f\n", (ratios[(ratios.size() - 1) / 2] + ratios[ratios.size() / 2]) / 2);
  return 0;
}

}  // namespace
}  // namespace rekindle::store

int main(int argc, char** argv) { return rekindle::store::Main(argc, argv); }
