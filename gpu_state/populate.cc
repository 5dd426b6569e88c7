#include "gpu_state/populate.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <thread>

#include "absl/base/const_init.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/parallel.h"
#include "gpu_state/thread_placement.h"

namespace rekindle::gpu {
namespace {

constexpr uint64_t kHugePage = 2 << 20, kSmallPage = 4096;
constexpr uint64_t kSmallPagesOfBlock = kHugePage / kSmallPage;
// Of a thread at a time: few enough that a small job's memory is work for all of them.
constexpr uint64_t kBlocksAtOnce = 16;
constexpr size_t kMostThreads = 16;

// So many threads on each memory node, of all that populate at the same time.
class ThreadShare {
 public:
  ThreadShare(const ThreadPlacement& placement, size_t wanted) : placement_(placement) {
    absl::MutexLock lock(&mutex_);
    size_t& taken = Taken()[placement_];
    const size_t most = kMostThreads * placement.memory_nodes();
    count_ = std::clamp<size_t>(wanted, 1, std::max<size_t>(most - std::min(most, taken), 1));
    taken += count_;
  }
  ~ThreadShare() {
    absl::MutexLock lock(&mutex_);
    const auto taken = Taken().find(placement_);
    if ((taken->second -= count_) == 0) Taken().erase(taken);
  }
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;
  size_t count() const { return count_; }

 private:
  static std::map<ThreadPlacement, size_t>& Taken() {
    static auto* taken = new std::map<ThreadPlacement, size_t>();
    return *taken;
  }
  static inline absl::Mutex mutex_{absl::kConstInit};
  const ThreadPlacement& placement_;
  size_t count_ = 1;
};

// So many small pages. False: not all of them.
bool Touch(pid_t pid, uint64_t first, uint64_t count) {
  static constexpr char kZeros[kSmallPagesOfBlock] = {};
  iovec there[kSmallPagesOfBlock];
  for (uint64_t i = 0; i < count; ++i) there[i] = {reinterpret_cast<void*>(first + i * kSmallPage), 1};
  const iovec here = {const_cast<char*>(kZeros), count};
  return ::process_vm_writev(pid, &here, 1, there, count, 0) == static_cast<ssize_t>(count);
}

// Nothing is known: there is, and it costs no further touch.
bool HasPage(int pagemap, uint64_t address) {
  constexpr uint64_t kPresent = uint64_t{1} << 63;
  uint64_t entry = 0;
  return ::pread(pagemap, &entry, sizeof entry, static_cast<off_t>(address / kSmallPage * sizeof entry)) !=
             sizeof entry ||
         (entry & kPresent) != 0;
}

}  // namespace

void PopulateFresh(pid_t pid, pid_t thread, uint64_t address, uint64_t bytes, const std::atomic<bool>& stop) {
  const uint64_t first = (address + kHugePage - 1) / kHugePage, end = (address + bytes) / kHugePage;
  if (end <= first) return;
  const auto pagemap = OpenFile(absl::StrCat("/proc/", pid, "/pagemap"), O_RDONLY);
  std::atomic<uint64_t> next{first};
  const auto count = static_cast<size_t>((end - first + kBlocksAtOnce - 1) / kBlocksAtOnce);
  const ThreadPlacement placement = ThreadPlacement::Of(pid, thread);
  size_t threads = std::min({count, kMostThreads, static_cast<size_t>(std::thread::hardware_concurrency())});
  if (placement.processors() > 0) threads = std::min(threads, placement.processors());
  const ThreadShare share(placement, threads);
  InParallel(share.count(), [&](size_t) {
    const ThreadPlacement::Adopted adopted(placement);
    for (uint64_t block; (block = next.fetch_add(kBlocksAtOnce)) < end;) {
      const uint64_t after = std::min(block + kBlocksAtOnce, end);
      for (; block < after; ++block) {
        const uint64_t start = block * kHugePage;
        if (stop || !Touch(pid, start, 1)) return;
        // With pages of a size in between, those next to the first are there too.
        if (!pagemap.ok() || HasPage(pagemap->get(), start + kHugePage - kSmallPage)) continue;
        if (stop || !Touch(pid, start, kSmallPagesOfBlock)) return;
      }
    }
  });
}

}  // namespace rekindle::gpu
