// What a store with many images costs: store_scale FOLDER [JOBS [IMAGES]] (default 300 100).
//
// Makes a store in FOLDER that looks as one does on which JOBS jobs of ten users have kept IMAGES images
// each: small ones, since what is measured grows with their number. Each builds upon the one before; of every
// job the first images are removed again, so that others have inherited their pages. Prints what operations
// take that the number of images could make slow, as a table in Markdown: the median of several.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "dedup_store/owner_use.h"
#include "dedup_store/removal.h"
#include "dedup_store/store.h"

namespace rekindle::store {
namespace {

constexpr uint64_t kBase = 0x7f0000000000;
constexpr size_t kPages = 96, kChanged = 2, kUsers = 10, kRounds = 9;
constexpr uid_t kFirstUser = 1000;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "store_scale: %s\n", status.ToString().c_str());
  exit(1);
}

struct Job {
  size_t number = 0, images = 0;
  std::vector<std::byte> memory = std::vector<std::byte>(kPages * kPageSize);
  std::string last;  // the digest of its newest image

  std::string name() const { return absl::StrCat("train-", number); }
  uid_t user() const { return kFirstUser + static_cast<uid_t>(number % kUsers); }
};

// As supervised jobs have them.
std::map<std::string, std::string> LabelsOf(const Job& job) {
  std::map<std::string, std::string> labels;
  for (int i = 0; i < 8; ++i)
    labels[absl::StrCat("rekindle.label-", i)] =
        absl::StrCat("what label ", i, " of job ", job.number, " says");
  return labels;
}

void Fill(std::byte* page, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < kPageSize; i += sizeof(uint64_t)) {
    const uint64_t word = random();
    memcpy(page + i, &word, sizeof word);
  }
}

void Commit(Store& store, Job& job) {
  for (size_t i = 0; i < kPages; ++i) {
    const bool changed = job.images == 0 || (i + job.images * kChanged) % kPages < kChanged;
    if (changed) Fill(job.memory.data() + i * kPageSize, job.number << 40 | job.images << 16 | i);
  }
  NewImageOptions options;
  options.reference = absl::StrCat(job.name(), ":", job.images++);
  options.parent = job.last;
  options.owner = job.user();
  options.labels = LabelsOf(job);
  auto writer = store.NewImage(options);
  Check(writer.status());
  Check((*writer)->AddPages("memory", kBase, job.memory));
  auto info = (*writer)->Commit();
  Check(info.status());
  job.last = info->digest;
}

void Row(const char* what, const std::function<void()>& before, const std::function<void()>& once) {
  std::vector<double> seconds;
  for (size_t i = 0; i < kRounds; ++i) {
    before();
    Stopwatch watch;
    once();
    seconds.push_back(watch.seconds());
  }
  std::sort(seconds.begin(), seconds.end());
  printf("| %s | %.2f | %.2f |\n", what, seconds[kRounds / 2] * 1e3, seconds.back() * 1e3);
  fflush(stdout);
}
void Row(const char* what, const std::function<void()>& once) {
  Row(
      what, [] {}, once);
}

void SetLimits(Store& store, uint64_t owner_max, uint64_t store_max) {
  for (size_t user = 0; user < kUsers; ++user) {
    LimitsChange change;
    change.owner = {kFirstUser + static_cast<uid_t>(user), owner_max};
    change.store_max_bytes = store_max;
    std::string warning;
    Check(store.ChangeLimits(change, &warning).status());
  }
}

int Main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    fprintf(stderr, "usage: store_scale FOLDER [JOBS [IMAGES]]\n");
    return 2;
  }
  const size_t count = argc > 2 ? strtoull(argv[2], nullptr, 10) : 300;
  const size_t images = std::max<size_t>(argc > 3 ? strtoull(argv[3], nullptr, 10) : 100, 2);
  auto folder = TemporaryDirectory::Make(argv[1], "store_scale.");
  Check(folder.status());
  StoreOptions options;
  options.path = folder->path() + "/store";
  auto opened = Store::Open(options);
  Check(opened.status());
  std::unique_ptr<Store> store = *std::move(opened);
  std::vector<Job> jobs(std::max<size_t>(count, 1));
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].number = i;
  Stopwatch making;
  for (size_t i = 0; i < images; ++i) {
    for (Job& job : jobs) Commit(*store, job);
  }
  fprintf(stderr, "made %zu images in %.0f s\n", jobs.size() * images, making.seconds());

  size_t next = 0;
  const auto commit = [&] { Commit(*store, jobs[next++ % jobs.size()]); };
  constexpr uint64_t kMuch = uint64_t{1} << 50;
  printf("%zu images of %zu jobs\n\n| | ms | slowest |\n| --- | --- | --- |\n", jobs.size() * images,
         jobs.size());
  Row(
      "opening the store", [&] { store.reset(); },
      [&] {
        auto again = Store::Open(options);
        Check(again.status());
        store = *std::move(again);
      });
  Row("commit", commit);
  const auto all = store->List([](const ImageInfo& image) {
    return absl::EndsWith(image.reference, ":0") || absl::EndsWith(image.reference, ":1");
  });
  Check(all.status());
  Row("list of all", [&] { Check(store->List().status()); });
  Row("list of one name", [&] {
    Check(store->List([](const ImageInfo& image) { return absl::StartsWith(image.reference, "train-1:"); })
              .status());
  });
  for (size_t at = 0; at < all->size(); at += kRemovedAtOnce) {
    const size_t some = std::min(kRemovedAtOnce, all->size() - at);
    Check(RemoveExactly(*store, absl::MakeConstSpan(*all).subspan(at, some)).status());
  }
  Stopwatch watch;
  Check(MeasureOwners(*store).status());
  printf("| what owners take, the first time | %.2f | |\n", watch.seconds() * 1e3);
  Row("what owners take", [&] { Check(MeasureOwners(*store).status()); });
  Row("the same, after a commit", commit, [&] { Check(MeasureOwners(*store).status()); });
  Row("totals", [&] { Check(store->Stats().status()); });
  Row("totals, after a commit", commit, [&] { Check(store->Stats().status()); });
  Row("commit", commit);
  SetLimits(*store, kMuch, 0);
  Row("commit, owners limited", commit);
  SetLimits(*store, 0, kMuch);
  Row("commit, store limited", commit);
  size_t victim = 2;
  Row("removal", [&] { Check(store->Remove(absl::StrCat("train-0:", victim++))); });
  watch = Stopwatch();
  Check(store->Gc({}).status());
  printf("| gc, the first | %.2f | |\n", watch.seconds() * 1e3);
  Row("gc", [&] { Check(store->Gc({}).status()); });
  watch = Stopwatch();
  Check(store->Fsck({}).status());
  printf("| fsck | %.2f | |\n", watch.seconds() * 1e3);
  return 0;
}

}  // namespace
}  // namespace rekindle::store

int main(int argc, char** argv) { return rekindle::store::Main(argc, argv); }
