#include "ckpt/staging_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/processors.h"
#include "base/status.h"

namespace rekindle::ckpt {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;
// What becomes usable at once, past what was expected: while the kernel sees to that, nobody else's first
// touch of a page goes on.
constexpr uint64_t kStepBytes = 16 * StagingArena::kBlockBytes;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

// Of addresses that this process may still take. Threads to come need stacks, and room for what they
// allocate.
uint64_t MostAddresses() {
  constexpr uint64_t kLeastLeft = 512u << 20;
  rlimit limit;
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  const std::string sizes = ReadFile("/proc/self/statm").value_or("");
  uint64_t pages = 0;
  (void)absl::SimpleAtoi(sizes.substr(0, sizes.find(' ')), &pages);
  const uint64_t taken = pages * static_cast<uint64_t>(::getpagesize());
  const uint64_t left = limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, taken);
  return left - std::min(left, std::max(left / 2, kLeastLeft));
}

// Touches [base, base+bytes) from several threads: most of the time goes into the kernel clearing pages. Each
// takes the next piece, since they do not all get a processor to themselves while the job runs.
void Touch(std::byte* base, uint64_t bytes) {
  constexpr uint64_t kPieceBytes = 8 * kHugePageBytes;
  std::atomic<uint64_t> next{0};
  auto touch = [&](size_t) {
    for (uint64_t from; (from = next.fetch_add(kPieceBytes)) < bytes;) {
      // A failure only means that the pages are made later, on the first copy into them.
      ::madvise(base + from, std::min(kPieceBytes, bytes - from), MADV_POPULATE_WRITE);
    }
  };
  InParallel(std::clamp<uint64_t>(bytes / kPieceBytes, 1, CopyThreads()), touch);
}

// A file that is gone once it is closed.
absl::StatusOr<UniqueFd> OpenUnnamed(const std::string& directory) {
  absl::StatusOr<UniqueFd> file = OpenFile(directory, O_TMPFILE | O_RDWR);
  if (!absl::IsUnimplemented(file.status())) return file;
  // NFS knows only files with names.
  std::string path = absl::StrCat(directory, "/staging.XXXXXX");
  UniqueFd named(::mkostemp(path.data(), O_CLOEXEC));
  if (!named.valid() || ::unlink(path.c_str()) != 0) return ErrnoStatus(errno, path);
  return named;
}

}  // namespace

size_t CopyThreads() {
  constexpr size_t kLeast = 2, kMost = 16;
  const absl::StatusOr<Processors> ours = AffinityOf(0);
  return std::clamp(ours.ok() ? ours->size() : 0, kLeast, kMost);
}

void KeptStaging::Drop() {
  if (base_) ::munmap(base_, reserved_bytes_);
  base_ = nullptr;
  image_ = {};
}

void KeptStaging::LetKernelHaveIt() {
  if (base_) ::madvise(base_, usable_bytes_, MADV_FREE);
}

absl::StatusOr<std::unique_ptr<StagingArena>> StagingArena::Create(uint64_t expected_bytes,
                                                                   uint64_t budget_bytes,
                                                                   const std::string& spill_directory,
                                                                   KeptStaging* kept,
                                                                   const char* more_budget) {
  std::unique_ptr<StagingArena> arena(new StagingArena(budget_bytes, spill_directory, kept, more_budget));
  arena->ReserveAndTouch(RoundUp(std::min(expected_bytes, budget_bytes), kBlockBytes));
  return arena;
}

void StagingArena::ReserveAndTouch(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (kept_ && !kept_->empty() && kept_->reserved_bytes_ >= bytes) {
    base_ = std::exchange(kept_->base_, nullptr);
    reserved_bytes_ = kept_->reserved_bytes_;
    usable_bytes_ = kept_->usable_bytes_;
    kept_->image_ = {};
  } else {
    if (kept_) kept_->Drop();
    Reserve(bytes);
  }
  MakeUsable(bytes);
  // What was kept and is still there is not cleared again.
  Touch(base_, std::min(bytes, usable_bytes_));
}

void StagingArena::Reserve(uint64_t bytes) {
  // Addresses for the whole budget, so that a job that grew since it was measured still goes to RAM.
  const uint64_t wanted = RoundUp(std::max(bytes, budget_bytes_), kBlockBytes);
  void* address = MAP_FAILED;
  uint64_t reserved = RoundDown(std::min(wanted, MostAddresses()), kBlockBytes), mapped = 0;
  for (; reserved > 0; reserved = RoundDown(reserved / 2, kBlockBytes)) {
    mapped = reserved + kHugePageBytes;
    // Without access it is nothing but addresses, whatever the kernel's rules for promising memory.
    address = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address != MAP_FAILED) break;
  }
  if (address == MAP_FAILED) return;
  reserved_bytes_ = reserved;
  // Aligned, so that every block can be made of whole huge pages; the slack is given back.
  uintptr_t start = reinterpret_cast<uintptr_t>(address);
  uintptr_t aligned = RoundUp(start, kHugePageBytes);
  if (aligned > start) ::munmap(address, aligned - start);
  uint64_t tail = mapped - (aligned - start) - reserved_bytes_;
  if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + reserved_bytes_), tail);
  base_ = reinterpret_cast<std::byte*>(aligned);
  ::madvise(base_, reserved_bytes_, MADV_HUGEPAGE);  // where the kernel has none, small pages do
  ::madvise(base_, reserved_bytes_, MADV_DONTDUMP);
  // A child that is to become another program would be promised as much again.
  ::madvise(base_, reserved_bytes_, MADV_DONTFORK);
}

void StagingArena::MakeUsable(uint64_t bytes) {
  uint64_t more = std::min(bytes, reserved_bytes_);
  more -= std::min(more, usable_bytes_);
  for (; more > 0; more = RoundDown(more / 2, kBlockBytes)) {
    if (::mprotect(base_ + usable_bytes_, more, PROT_READ | PROT_WRITE) != 0) continue;
    usable_bytes_ += more;
    return;
  }
}

StagingArena::~StagingArena() {
  absl::MutexLock lock(&mutex_);
  if (base_ && kept_ && ::madvise(base_, usable_bytes_, MADV_FREE) == 0) {
    kept_->base_ = base_;
    kept_->reserved_bytes_ = reserved_bytes_;
    kept_->usable_bytes_ = usable_bytes_;
    // What was spilled goes now.
    for (auto& [name, pages] : image_.objects) {
      std::erase_if(pages, [this](const store::PagesInMemory& p) {
        return p.bytes.data() < base_ || p.bytes.data() + p.bytes.size() > base_ + reserved_bytes_;
      });
    }
    kept_->image_ = std::move(image_);
  } else if (base_) {
    ::munmap(base_, reserved_bytes_);
  }
  for (void* block : spill_blocks_) ::munmap(block, kBlockBytes);
}

absl::StatusOr<absl::Span<std::byte>> StagingArena::NextBlock() {
  absl::MutexLock lock(&mutex_);
  const uint64_t after = used_bytes_ + kBlockBytes, most = RoundUp(budget_bytes_, kBlockBytes);
  if (after > usable_bytes_ && after <= most) MakeUsable(std::min(usable_bytes_ + kStepBytes, most));
  if (after > std::min(usable_bytes_, most)) return NextSpillBlock();
  absl::Span<std::byte> block(base_ + used_bytes_, kBlockBytes);
  used_bytes_ += kBlockBytes;
  return block;
}

absl::StatusOr<absl::Span<std::byte>> StagingArena::NextSpillBlock() {
  std::string what = absl::StrCat("staging beyond the memory budget of ", FormatBytes(budget_bytes_), " in ",
                                  spill_directory_);
  if (!spill_file_.valid()) {
    auto file = OpenUnnamed(spill_directory_);
    if (!file.ok()) return Annotate(file.status(), what);
    spill_file_ = *std::move(file);
  }
  // Allocated before it is mapped: a full disk must be an error here and not a SIGBUS at the first touch.
  int error = ::posix_fallocate(spill_file_.get(), static_cast<off_t>(spilled_bytes_), kBlockBytes);
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the disk is full; free some, or ", HowToSpillLess()));
  }
  if (error != 0) return ErrnoStatus(error, what);
  void* address = ::mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, spill_file_.get(),
                         static_cast<off_t>(spilled_bytes_));
  if (address == MAP_FAILED) {
    const absl::Status failed = ErrnoStatus(errno, what);
    return WithMessage(failed, absl::StrCat(failed.message(), "; ", HowToSpillLess()));
  }
  spill_blocks_.push_back(address);
  spilled_bytes_ += kBlockBytes;
  return absl::Span<std::byte>(static_cast<std::byte*>(address), kBlockBytes);
}

std::string StagingArena::HowToSpillLess() const {
  if (used_bytes_ + kBlockBytes > RoundUp(budget_bytes_, kBlockBytes)) return more_budget_;
  if (used_bytes_ + kBlockBytes > reserved_bytes_ && MostAddresses() != UINT64_MAX)
    return "let Rekindle have more addresses (RLIMIT_AS: `ulimit -v`)";
  return "let Rekindle have more memory: the kernel promises it no more (vm.overcommit_memory=2 with what "
         "vm.overcommit_ratio and swap space allow, or RLIMIT_DATA: `ulimit -d`)";
}

std::string StagingArena::how_to_spill_less() const {
  absl::MutexLock lock(&mutex_);
  return HowToSpillLess();
}

absl::Status StagingArena::CheckSpilled() const {
  absl::MutexLock lock(&mutex_);
  if (!spill_file_.valid()) return absl::OkStatus();
  // Waits for what is being written now, and tells of each write that failed since the file was opened. What
  // was not written yet is in memory.
  if (::sync_file_range(spill_file_.get(), 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE) == 0) return absl::OkStatus();
  // A sandbox may not know that call.
  if ((errno == ENOSYS || errno == EPERM) && ::fdatasync(spill_file_.get()) == 0) return absl::OkStatus();
  const absl::Status failed = ErrnoStatus(errno, "writing it");
  return absl::DataLossError(absl::StrCat("the job's memory was staged beyond the memory budget of ",
                                          FormatBytes(budget_bytes_), " in a file in ", spill_directory_,
                                          ", whose disk could not take it (", failed.message(),
                                          "): see to that disk, name another one, or ", HowToSpillLess()));
}

uint64_t StagingArena::spilled_bytes() const {
  absl::MutexLock lock(&mutex_);
  return spilled_bytes_;
}

}  // namespace rekindle::ckpt
